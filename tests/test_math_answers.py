"""Answers found and compared: a long table of pairs, the benchmark golds, hostile input, threads, the worker pool."""

import json
import os
import subprocess
import sys
import threading
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import InfraError
from tasks import math_answers
from tasks.math_answers import extract_answer, math_equal, score_answers
from tasks.math_text import clean

ROOT = Path(__file__).resolve().parent.parent

# gold, answer, equal?
PAIRS = r"""
# integers, signs, zeros
42 | 42 | 1
42 | 43 | 0
42 | 042 | 1
42 | 42.0 | 1
42 | 42. | 1
-6 | -6 | 1
-6 | 6 | 0
6 | -6 | 0
6 | +6 | 1
-6 | − 6 | 1
-50 | −50 | 1
0 | -0 | 1
0 | 0.000 | 1
0 | 0.0000004 | 0
18 | \$18 | 1
18 | $18$ | 1
18 | 18 dollars | 1
18 | $18.00 | 1
18 | 18.5 | 0
18 | {18} | 1
18 | (18) | 1
\$18.90 | 18.9 | 1
\$36 | 36 | 1
12345678901234567890 | 12345678901234567891 | 0
# thousands marks and lists
1,024 | 1024 | 1
1,024 | 1.024 | 0
1,024 | 1, 024 | 0
1024 | 1,024 | 1
3,7 | 37 | 0
3,7 | 3, 7 | 1
3,7 | 7,3 | 1
3,7 | 3 and 7 | 1
3,7 | 3 \text{ and } 7 | 1
3,7 | 3 | 0
3,7 | 3,7,7 | 0
10,\!080 | 10080 | 1
10,\!080 | 10\,080 | 1
10{,}080 | 10080 | 1
11,\! 111,\! 111,\! 100 | 11111111100 | 1
\$32,\!348 | 32348 | 1
58,500 | 58500 | 1
58,500 | 58,50 | 0
1,234,567 | 1234567 | 1
1,234,567 | 1,234567 | 0
312,123,231 | (312, 123, 231) | 0
(312,123,231) | (312, 123, 231) | 1
2500,7500 | 7500, 2500 | 1
-2,0,2 | 2,-2,0 | 1
-2,-2 | -2 | 0
# fractions and mixed numbers
5/8 | 0.625 | 1
5/8 | \frac58 | 1
5/8 | 0.63 | 0
5/8 | 0.62500000001 | 0
\frac{1}{2} | \dfrac{1}{2} | 1
\frac{1}{2} | \tfrac12 | 1
\frac{1}{2} | \cfrac{1}{2} | 1
\frac{1}{2} | 1/2 | 1
\frac{1}{2} | 2/4 | 1
\frac{1}{2} | ½ | 1
\frac{1}{2} | .5 | 1
\frac{1}{2} | \frac{2}{1} | 0
\frac12 | \frac{1}{2} | 1
\frac9{19} | 9/19 | 1
\frac 59 | \frac{5}{9} | 1
\frac{270}7\text{ degrees} | 270/7 | 1
-\frac{35}{9} | \frac{-35}{9} | 1
-\frac{35}{9} | \frac{35}{-9} | 1
-\frac{35}{9} | \frac{35}{9} | 0
1\frac{4}{5} | 9/5 | 1
1\frac{4}{5} | 1 4/5 | 1
1\frac{4}{5} | 4/5 | 0
137 \frac{1}{2} | 137.5 | 1
-1\frac{1}{2} | -1.5 | 1
-1\frac{1}{2} | -0.5 | 0
\frac{1}{1+\frac{1}{2}} | \frac23 | 1
\frac{2016}{2017^{2}} | \frac{2016}{4068289} | 1
1/0 | 1 | 0
# decimals and rounding
\frac13 | 0.333333 | 1
\frac13 | 0.33333333 | 1
\frac13 | 0.33333 | 0
\frac13 | 0.333334 | 0
\frac23 | 0.666667 | 1
\frac23 | 0.666666 | 0
\frac13 | 0.\overline{3} | 1
\frac16 | 0.1\overline{6} | 1
\pi | 3.14159 | 1
\pi | 3.1416 | 0
\pi | 3.141593 | 1
\pi | 3.141592 | 0
\pi | 22/7 | 0
\pi | \frac{355}{113} | 0
\sqrt{2} | 1.41421 | 1
\sqrt{2} | 1.41422 | 0
\sqrt{2} | 1.414214 | 1
\sqrt{51} | 7.14143 | 1
0.333333 | \frac13 | 0
326.5 | 653/2 | 1
326.5 | 326.50 | 1
326.5 | 326.500001 | 0
.0000672 | 6.72 \times 10^{-5} | 1
.0000672 | 0.0000673 | 0
.35625 | 0.35625 | 1
1.25 | \frac54 | 1
1000000/3 | 333333 | 0
1000000/3 | 333333.3 | 1
# scientific notation and powers
3.0 \times 10^5 | 300000 | 1
3\cdot 10^{5} | 3e5 | 1
3.0 \times 10^5 | 3.0 \times 10^6 | 0
2^{10} | 1024 | 1
2^{1009} | 2^{1009} + 1 | 0
2^{1009} | 2 \cdot 2^{1008} | 1
\frac{100!}{2^{50}} | \frac{100!}{4^{25}} | 1
\frac{100!}{2^{50}} | \frac{100!}{2^{50}} + 1 | 0
10^{10^{10}} | 10^{10^{10}} | 1
10^{10^{10}} | 10^{10^{9}} | 0
10**3 | 1000 | 1
2021 \cdot 505 \cdot 337 | 343943885 | 1
10^{100} | 10^{101} | 0
# roots, pi, logarithms, trigonometry
\sqrt2 | \sqrt{2} | 1
11\sqrt2 | 11 \sqrt{2} | 1
11\sqrt2 | \sqrt{242} | 1
3\sqrt{13} | 3√13 | 1
3\sqrt{13} | sqrt(117) | 1
3\sqrt{13} | 3\sqrt{12} | 0
\sqrt{2+\sqrt{3}} | \frac{\sqrt{6}+\sqrt{2}}{2} | 1
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}} | 1
5 \sqrt[3]{4} | \sqrt[3]{500} | 1
2^{-2 / 3} | \frac{1}{\sqrt[3]{4}} | 1
\frac{20000}{\pi} | 20000/\pi | 1
288 \pi | 288π | 1
288 \pi | 288 | 0
-\frac{\pi}{6} | -\pi/6 | 1
\frac{1}{2}\pi | \frac{\pi}{2} | 1
\log_2 8 | 3 | 1
\ln e^2 | 2 | 1
2,-\log _{10} 250 | -\log_{10}(250), 2 | 1
\frac{\log 2}{\log 2-\log 3} | \frac{\ln 2}{\ln 2 - \ln 3} | 1
\cot x | \frac{\cos x}{\sin x} | 1
\cot x | \tan x | 0
1 | \sin^2 x+\cos^2 x | 1
\frac12 | \sin 30^\circ | 1
\arctan 1 | \frac{\pi}{4} | 1
\sqrt{2} | \sqrt{2}+10^{-60} | 0
1 | 1-10^{-60} | 0
e | 2.71828 | 1
e | 2.72 | 0
# complex numbers
6 - 5i | -5i+6 | 1
6 - 5i | 6+5i | 0
1+274i | 1 + 274 i | 1
5 | (1+2i)(1-2i) | 1
-1 | i^2 | 1
\frac{1}{i} | -i | 1
# polynomials and expressions
p - q | -q+p | 1
p - q | q - p | 0
(a+5)(b+2) | ab+2a+5b+10 | 1
x^3+3x-6 | 3x - 6 + x^3 | 1
x^3+3x-6 | x^3+3x+6 | 0
2k+2 | 2(k+1) | 1
2k+2 | 2n+2 | 0
6r^2-4r-24 | 2(3r^2-2r-12) | 1
n(n-1) | n^2-n | 1
\frac{n(n+1)(2 n+1)}{6} | \frac{2n^3+3n^2+n}{6} | 1
\binom{2n}{n} | \frac{(2n)!}{n!^2} | 1
\frac{d !}{2 k(d-k) !} | \frac{d!}{2k (d-k)!} | 1
\lfloor\sqrt{n-1}\rfloor | \lfloor (n-1)^{1/2} \rfloor | 1
\lfloor n/2\rfloor | n/2 | 0
\lceil n / 2\rceil+1 | \lfloor (n+1)/2 \rfloor + 1 | 1
2^{n}-n-1 | 2^n - (n+1) | 1
(n-2) 2^{n}+1 | n 2^n - 2^{n+1} + 1 | 1
6m | 6 | 0
6m | 6 m | 1
|x| | x | 0
|x| | \sqrt{x^2} | 1
3R^2 | 3r^2 | 1
5x | 5 | 0
x | y | 0
\frac{x^2-1}{x-1} | x+1 | 1
# equations
x=5 | 5 | 1
5 | x=5 | 1
x=5 | y=5 | 0
x=5 | x=6 | 0
x = 5 | 2x = 10 | 1
5 | x = 2+3 = 5 | 1
2x+5y+9=0 | 7x-y+4=0 | 0
2x+5y+9=0 | 4x+10y+18=0 | 1
2x+5y+9=0 | 0 | 0
2x+5y+9=0 | -2x-5y=9 | 1
y = 2x + 3 | 2x+3 | 1
y = 2x + 3 | y - 2x - 3 = 0 | 1
y = 2x + 3 | y = 2x - 3 | 0
5x - 7y + 11z + 4 = 0 | 5x-7y+11z=-4 | 1
f(x)=2 x | 2x | 1
f(x)=2 x | f(x)=3x | 0
f(x)=x,f(x)=-x | f(x)=-x, f(x)=x | 1
f(n)=n, g(n)=1 | f(n)=n | 0
x^2=-1 | x^2=-4 | 0
m_{\max }=n^{2}-n-1 | n^2-n-1 | 1
\angle B E A_{1}=90,\angle A E B_{1}=90 | 90, 90 | 1
x=2,x=-2 | 2,-2 | 1
x=\pm 3 | 3, -3 | 1
1 \pm \sqrt{19} | 1-\sqrt{19}, 1+\sqrt{19} | 1
1 \pm \sqrt{19} | 1+\sqrt{19} | 0
1 ± √19 | 1 +/- \sqrt{19} | 1
\{1\pm\sqrt{5},-2\} | \{-2, 1-\sqrt5, 1+\sqrt5\} | 1
# tuples, sets, intervals, inequalities
(6,5) | (6, 5) | 1
(6,5) | (5,6) | 0
(6,5) | \left( 6, 5 \right) | 1
(6,5) | 6,5 | 1
(6,5) | 5,6 | 0
(6,5) | \{6,5\} | 0
\{6,5\} | (6,5) | 0
\{6,5\} | \{5, 6\} | 1
\{6,5\} | 5,6 | 1
\{6,5\} | \{5,6,6\} | 1
\{6,5\} | \{5,6,7\} | 0
\{5\} | 5 | 1
[6,7] | (6,7) | 0
[1,2,3] | (1,2,3) | 1
(1,1), (3,2) | (3,2),(1,1) | 1
(1,1), (3,2) | (1,1),(2,3) | 0
(0,2),(0,-2) | (0, \pm 2) | 1
\left( 3, \frac{\pi}{2} \right) | (3, \pi/2) | 1
\left( 3, \frac{\pi}{2} \right) | (3, 1.570796) | 1
\langle 1,2\rangle | (1,2) | 1
(45^{\circ}, 60^{\circ}) | (45, 60) | 1
2<x\le5 | (2,5] | 1
(2,5] | 2<x\le5 | 1
2<x\le5 | (2,5) | 0
2<x\le5 | [2,5] | 0
2<x<5 | (2,5) | 1
2<x<5 | 5>x>2 | 1
2<x<5 | 2<y<5 | 0
x \in [-2,7] | [-2,7] | 1
x \in [-2,7] | -2 \leq x \leq 7 | 1
[-2,7] | x \in [-2,7) | 0
k \geqslant 2 | k\ge2 | 1
k \geqslant 2 | [2,\infty) | 1
k \geqslant 2 | k > 2 | 0
k \geqslant 2 | 2 ≤ k | 1
(2,\infty) | x>2 | 1
(2,\infty) | (2, +\infty) | 1
(-\infty, 0] | (-∞, 0] | 1
(-\infty, 2) \cup (3, \infty) | (3,\infty)\cup(-\infty,2) | 1
(-\infty, 2) \cup (3, \infty) | x<2 \text{ or } x>3 | 1
(-\infty, 2) \cup (3, \infty) | (-\infty, 2) | 0
(0,9) \cup (9,36) | (0,36) | 0
(0,2] \cup (1,3) | (0,3) | 1
(-\infty, 0) \cup\{1\} | \{1\} \cup (-\infty,0) | 1
\emptyset | \varnothing | 1
\emptyset | \{\} | 1
x+y<3 | 2x+2y<6 | 1
x+y<3 | x+y>3 | 0
x+y<3 | 3 > x + y | 1
x \ne 3 | x \neq 3 | 1
x \ne 3 | x = 3 | 0
# matrices and vectors
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix} | 1
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix} | 0
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right] | 1
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix} | 1
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 & 2 \end{pmatrix} | 0
\begin{pmatrix} 2 \\ 4 \end{pmatrix} | 2\begin{pmatrix} 1 \\ 2 \end{pmatrix} | 1
# percent
35\% | 35 | 1
35\% | 0.35 | 1
35\% | 3.5 | 0
35\% | 35% | 1
35\% | 35 percent | 1
0.35 | 35\% | 1
35 | 35\% | 1
62.5% | \frac58 | 1
8 \% | 0.8 | 0
# units, degrees, money, bases
17 | 17\text{ cm} | 1
17 | 17 cm | 1
17 | \text{17} | 1
17 | 17 miles per hour | 1
17 | 17 \mathrm{~m} | 1
17 | 17 km/h | 1
90^\circ | 90 | 1
90^\circ | 90^{\circ} | 1
90 | 90° | 1
90 | 90 \text{ degrees} | 1
864 \mbox{ inches}^2 | 864 | 1
15\mbox{ cm}^2 | 15 cm^2 | 1
5.4 \text{ cents} | 5.4 | 1
5.4 \text{ cents} | 5 | 0
52_8 | 52_{8} | 1
52_8 | 52_9 | 0
52_8 | 42 | 0
4210_{5} | 4210_5 | 1
101_2 | 101_3 | 0
5 | 101_2 | 1
101_2 | 5 | 0
# words
\text{Tuesday} | tuesday | 1
\text{Tuesday} | \text{Wednesday} | 0
\text{Evelyn} | Evelyn | 1
\text{even} | odd | 0
\text{even} | neve | 0
\text{(C)} | C | 1
\text{(C)} | (C) | 1
\text{(C)} | \textbf{C} | 1
\text{(C)} | (D) | 0
\text{no solution} | No solution | 1
\text{east} | 5 east | 0
42 | the answer is 42 | 0
42 | 42 appears above but I am not sure | 0
# mixtures
\frac{1}{2} | 1 \over 2 | 1
4.25 | \frac{17}{4} | 1
10 | 10 \text{ or } 12 | 0
5 | 5, 5 | 0
(x-1)^2 | (1-x)^2 | 1
0.5 | 50\% | 1
y=\frac{1}{2}x | 2y=x | 1
3:4 | 3 : 4 | 1
3:4 | 4:3 | 0
5! | 120 | 1
\frac13 | 33.\overline{3}\% | 1
\frac{0.5}{2} | 0.25 | 1
\text{Yes} | yes. | 1
5 | \text{The answer is 5} | 0
p=3,q=4 | q=4, p=3 | 1
(3,4) | x=3, y=4 | 1
3 | 1, 2, 3 | 0
3 | \pm 3 | 0
3 | 3 million | 0
3000000 | 3 million | 0
3 | 3 squared | 0
-1 | 2+-3 | 1
x^2 - 3x | x^2 + -3x | 1
2x+3 | 2 x + 3 | 1
\frac{x}{2} | x/2 | 1
\frac{x}{2} | 0.5x | 1
\frac{x+1}{2} | x+1/2 | 0
2^{k-n} | \frac{2^k}{2^n} | 1
2^{k-n} | 2^k-2^n | 0
\frac{a b}{2} | ab/2 | 1
\frac{N}{2} | N/2 | 1
M=\frac{9}{32} \sqrt{2} | \frac{9\sqrt2}{32} | 1
N(n)=\left\lfloor\frac{2 n}{3}\right\rfloor+1 | \lfloor 2n/3 \rfloor + 1 | 1
\lfloor\frac{2 n-1}{5}\rfloor | \left\lfloor \frac{2n-1}{5} \right\rfloor | 1
\frac{-1+\sqrt{5}}{2} | \frac{\sqrt5-1}{2} | 1
1,\frac{3 + \sqrt{21}}{2},\frac{3 - \sqrt{21}}{2} | 1, \frac{3 \pm \sqrt{21}}{2} | 1
d=\frac{1+\sqrt{1+8 n}}{2} | \frac{\sqrt{8n+1}+1}{2} | 1
x=\frac{1}{6} \pi+\pi k, \frac{1}{3} \pi+\pi k | \frac{\pi}{6}+k\pi, \frac{\pi}{3}+k\pi | 1
4 \pi^{2}-1 | 4π² - 1 | 1
\frac{5 \pi}{4} \sqrt{17} | \frac{5\pi\sqrt{17}}{4} | 1
(22+8 \sqrt{6}, 22-8 \sqrt{6}) | (22-8\sqrt6, 22+8\sqrt6) | 0
(10^{4}, 10^{3}) | (10000, 1000) | 1
(\log_{10} 2, 4) | (4, \log_{10} 2) | 0
(-\sqrt{3}, \sqrt{3}) | -\sqrt{3} < x < \sqrt{3} | 1
(-\sqrt{3}, \sqrt{3}) | |x|<\sqrt3 | 0
\left[ \frac{\pi^2}{8}, \frac{5 \pi^2}{4} \right] | [\pi^2/8, 5\pi^2/4] | 1
\left(\frac{3}{5},\frac{8}{3}\right] | (0.6, 8/3] | 1
\left(\frac{3}{5},\frac{8}{3}\right] | (0.6, 2.67] | 0
\mathbb{R} | (-\infty,\infty) | 1
\mathbb{R} \setminus \{1\} | (-\infty,1)\cup(1,\infty) | 1
\frac{\sqrt{3}}{2} + \frac{1}{2}i | \frac{\sqrt3+i}{2} | 1
e^{i\pi} | -1 | 1
\frac{1}{\sqrt{2}} | \frac{\sqrt{2}}{2} | 1
\sqrt{x} | x^{1/2} | 1
\sqrt{x} | x^{0.5} | 1
\log x^2 | 2\log x | 0
(1,2) | 1<x<2 | 1
(1,2) | [1,2) | 0
5 | 5 \approx 5.1 | 1
\sqrt{2} | \sqrt{2} \approx 1.414 | 1
\sqrt{2} | x \approx 1.414 | 0
2 \text{ hours} | 2 hours | 1
$32,348 | 32348 | 1
\text{(E)} | E | 1
\text{(E)} | e | 1
x^2+y^2=4 | y^2 + x^2 = 4 | 1
x^2+y^2=4 | x^2+y^2=2 | 0
x^2+y^2=4 | \frac{x^2}{4}+\frac{y^2}{4}=1 | 1
\frac{dy}{dx}=3 | 3 | 1
a=b=2 | a=2 | 1
x>3 | y>3 | 0
x>3 | x>3.0 | 1
x>3 | 3 | 0
x \le -1 \text{ or } x \ge 1 | (-\infty,-1] \cup [1,\infty) | 1
123456789123456789 | 123,456,789,123,456,789 | 1
0.1 | 1e-1 | 1
1/3 | 0.3333333333333333 | 1
1/3 | 1/3.0 | 1
0.05 | .05 | 1
99999999999999999999.5 | 99999999999999999999.4 | 0
x | \text{x} | 1
\alpha+\beta | \beta+\alpha | 1
\theta | θ | 1
AB | BA | 1
\angle ABC = 60^\circ | 60 | 1
10\text{ feet} | 10 \text{ ft} | 1
-\frac{1}{2} | \frac{1}{-2} | 1
-\frac{1}{2} | \left(-\frac{1}{2}\right) | 1
(-3)^2 | 9 | 1
-3^2 | -9 | 1
\frac{3}{4}\cdot 8 | 6 | 1
5\times 10^{-3} | 0.005 | 1
\pi | \pi = 3.14 | 0
\pi | \pi \approx 3.14 | 1
12.5\% | \frac{1}{8} | 1
33.3333\% | \frac13 | 0
\frac13 | 33.3333\% | 1
\frac13 | 33.3\% | 0
0 | 0_2 | 1
3 | 1=2=3 | 0
5 | 2+3=5 | 1
\{1,2,\ldots,10\} | \{1,2,\dots,10\} | 1
3 | 2<3 | 0
2 | x-2=0 | 0
f(x)=x^2 | g(x)=x^2 | 0
2^3 | 23 | 0
(1,2) | (1;2) | 1
10 | ten | 0
1 \pmod{4} | 1 | 0
0.5 | \cos 60^{\circ} | 1
i | \sqrt{-1} | 1
7 | \{7\} | 1
7 | [7] | 1
16 | 10_{16} | 1
# malformed or empty
42 |  | 0
42 | \frac{ | 0
42 | \frac{42}{ | 0
42 | {{{{ | 0
42 | ))) | 0
42 | \ | 0
42 | \left( | 0
42 | = | 0
42 | , | 0
42 | \boxed{} | 0
42 | \undefined{3} | 0
42 | 4 2 | 0
42 | nan | 0
42 | \infty | 0
\infty | -\infty | 0
42 | True | 0
"""
TABLE = [line.split(" | ") for line in PAIRS.strip().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("gold", "answer", "verdict"), TABLE)
def test_pair(gold, answer, verdict):
    equal = {"1": True, "0": False}[verdict]
    assert math_equal(gold=gold, answer=answer) is equal
    assert math_equal(gold=rf"\boxed{{{gold}}}", answer=rf"\fbox{{{answer}}}") is equal


def test_the_table_is_long_and_has_both_verdicts():
    assert len({(gold, answer) for gold, answer, _ in TABLE}) == len(TABLE) >= 150
    assert sum(verdict == "0" for *_, verdict in TABLE) >= 100


def test_gold_and_answer_cannot_be_swapped():
    with pytest.raises(TypeError):
        math_equal("5", "5")  # type: ignore[misc]
    assert math_equal(gold=r"\frac13", answer="0.333333")
    assert not math_equal(gold="0.333333", answer=r"\frac13")


# ---------------------------------------------------------------------------------------------------- finding an answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"so \fbox{5}", "5"),
        (r"so \boxed {5}.", "5"),
        (r"so $\boxed 6$.", "6"),
        (r"so \boxed 64.", "64"),
        (r"\boxed-6", "-6"),
        (r"\boxed\frac12 then", r"\frac12"),
        (r"so \\boxed{5}", "5"),
        (r"\boxed{4} no, \boxed{5}", "5"),
        (r"\boxed{4} or \boxed 5", "5"),
        (r"\boxed 4 or \boxed{5}", "5"),
        (r"\boxed{5} and \boxed{}", "5"),
        (r"\boxed{5} and \boxed{ }", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{1 + \fbox{2}}", r"1 + \fbox{2}"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{x \right.} end}", r"\left\{x \right."),
        (r"\boxed{5} and then \boxed{12", "5"),
        (r"cut off \boxed{12", None),
        (r"a } stray { brace \boxed{5}", "5"),
        (r"\boxed{5} <think>maybe \boxed{6}</think>", "5"),
        (r"<think>\boxed{6}</think> \boxed{5}", "5"),
        (r"\boxed{6} </think> \boxed{5}", "5"),
        (r"<think>\boxed{6}</think> none", None),
        (r"<think>\boxed{6} and cut off", None),
        (r"\boxed{5} <think>\boxed{6} and cut off", "5"),
        ("so it is\n#### -6", "-6"),
        ("so it is\n#### 1,080 \n\n", "1,080"),
        ("#### 6\nno, wait", None),
        ("#### ", None),
        ("\\boxed{5}\n#### 6", "5"),
        ("42 appears above but I am not sure", None),
        (r"\boxed{}", None),
        ("the last number is 4 9", None),
        ("", None),
        ("\\boxed{\n5\n}", "5"),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_long_answers_are_found_whole():
    polynomial = " + ".join(f"{n + 2}x^{{{n}}}" for n in range(18))
    assert len(polynomial) > 150
    assert score_answers(["long " * 400 + rf"\boxed{{{polynomial}}}"], [polynomial]) == [1.0]


# -------------------------------------------------------------------------------------------------------------- scoring


def test_score_answers_reads_whole_responses():
    texts = [
        r"\boxed{\frac27}",
        "2/7",
        "#### -6",
        "#### 6",
        r"<think>\boxed{1}</think>",
        r"\boxed{1080}",
        r"\boxed{0.625}",
    ]
    golds = [r"\boxed{\frac27}", "2/7", "-6", "-6", "1", "She has 1080.\n#### 1,080", "5/8"]
    assert score_answers(texts, golds) == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert score_answers([], []) == []
    with pytest.raises(ValueError, match="2 texts but 1 golds"):
        score_answers(["a", "b"], ["a"])


def test_the_same_in_every_thread():
    pairs = [(r"\sqrt{8}", r"2\sqrt{2}", True), (r"x^2-1", "(x-1)(x+1)", True), (r"\sqrt{8}", r"2\sqrt{3}", False)]
    wrong = []

    def work(k):
        for gold, answer, equal in pairs:
            gold, answer = f"{gold}+{k}", f"{answer}+{k}"  # another pair in every thread: no answer from a cache
            if math_equal(gold=gold, answer=answer) is not equal:
                wrong.append((gold, answer))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


fractions = st.fractions(max_denominator=1000, min_value=-1000, max_value=1000)


@given(fractions, fractions)
def test_rational_numbers_are_equal_as_rational_numbers_are(a, b):
    spelled = rf"\frac{{{b.numerator}}}{{{b.denominator}}}"
    assert math_equal(gold=str(a), answer=spelled) is (a == b)


@given(fractions, st.integers(1, 12), st.integers(-2, 2))
def test_decimals_are_equal_when_exact_or_rounded_from_enough_digits(value, places, off):
    decimal = round(value * 10**places) + off
    text = f"{'-' if decimal < 0 else ''}{abs(decimal) // 10**places}.{abs(decimal) % 10**places:0{places}d}"
    digits = len(text.replace(".", "").replace("-", "").lstrip("0"))
    exact = Fraction(decimal, 10**places) == value
    terminates = any((value * 10**n).denominator == 1 for n in range(12))
    rounded = off == 0 and digits >= 6 and not terminates
    assert math_equal(gold=str(value), answer=text) is (exact or rounded)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(r"\{}()[]^_&%$#|<>=+-*/!.,;~ 0123456789abxiepmfrcqt")), st.text(max_size=30))
def test_no_text_raises(answer, anything):
    for text in (answer, anything, rf"\boxed{{{answer}}}"):
        assert math_equal(gold="5", answer=text) in (True, False)
        assert extract_answer(text) != ""


# ----------------------------------------------------------------------------------------- hostile answers and the pool

HOSTILE = {
    "tower": "9^{9^{9^9}}",
    "factorials": "((((((9!)!)!)!)!)!)!",
    "nested braces": "{" * 1900,
    "product": r"\prod_{k=1}^{1000000000} \sin k",
    "integral": r"\int_0^{10^9} \sin(x^x) dx",
    "tangent": r"\tan(10^{10^{10}})",
    "exponent": "1e999999999",
}


def test_hostile_answers_cost_their_limit_and_starve_nobody():
    """All hostile answers at once; honest ones that need a worker come back correct and soon while they run."""
    hostile = threading.Thread(
        target=lambda: verdicts.extend(
            score_answers([rf"\boxed{{{a}}}" for a in HOSTILE.values()], ["7"] * len(HOSTILE))
        )
    )
    verdicts: list[float] = []
    start = time.monotonic()
    hostile.start()
    waits = []
    for k in range(2, 7):
        time.sleep(0.2)
        asked = time.monotonic()
        assert math_equal(gold=rf"\sqrt{{{2 * k * k}}}", answer=rf"{k}\sqrt{{2}}")
        waits.append(time.monotonic() - asked)
    assert hostile.is_alive(), "the honest answers were meant to run beside hostile ones"
    hostile.join()
    assert verdicts == [0.0] * len(HOSTILE)
    assert max(waits) < 10, waits
    assert time.monotonic() - start < 5 + len(HOSTILE) * (math_answers.QUICK + math_answers.LIMIT + 2) / (
        math_answers.SIZE - 1
    )


@pytest.mark.parametrize("unit", ["<think>", "\\boxed{", "\\", "\n", "#", "{", "\\boxed ", "7", "\\text{ ", "1 ", "x+"])
def test_100_kilobytes_are_read_in_no_time(unit):
    text = unit * (100_000 // len(unit))
    timeouts = math_answers.scorer_counts()["timeout"]
    extract_answer(text)
    assert not math_equal(gold="7", answer=text)
    assert score_answers([rf"\boxed{{{text}}}", text], ["8", "8"]) == [0.0, 0.0]
    assert math_answers.scorer_counts()["timeout"] == timeouts


def test_a_killed_worker_is_replaced():
    assert math_equal(gold=r"\sqrt{12}", answer=r"2\sqrt{3}")
    pool = math_answers._pool
    workers = [worker for worker in pool.idle.queue if worker is not None]
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
    assert workers
    assert math_equal(gold=r"\sqrt{20}", answer=r"2\sqrt{5}")


def test_a_scorer_that_cannot_run_is_an_error_and_no_verdict(monkeypatch):
    monkeypatch.setattr(math_answers, "_pool", math_answers._Pool(2))
    monkeypatch.setattr(math_answers.sys, "executable", "/bin/false")
    with pytest.raises(InfraError, match="did not start"):
        math_equal(gold=r"\sqrt{28}", answer=r"2\sqrt{7}")
    assert math_answers.scorer_counts() == {"compared": 1, "timeout": 0, "infra": 1}
    assert math_equal(gold="0.5", answer="1/2")  # numbers need no worker
    monkeypatch.undo()
    assert math_equal(gold=r"\sqrt{28}", answer=r"2\sqrt{7}")  # the failure was not remembered as a verdict


def test_workers_end_with_the_interpreter_even_when_it_is_killed():
    program = """
import os, signal, sys, threading
from tasks import math_answers
assert math_answers.math_equal(gold="x^2-1", answer="(x-1)(x+1)")
print(*[worker.process.pid for worker in math_answers._pool.idle.queue if worker], flush=True)
threading.Thread(target=lambda: math_answers.math_equal(gold="7", answer="9^{9^{9^9}}"), daemon=True).start()
if "kill" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for argument in ("leave", "kill"):
        run = subprocess.run(
            [sys.executable, "-c", program, argument], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert run.returncode == (-9 if argument == "kill" else 0), run.stderr
        workers = run.stdout.split()
        assert workers
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "a worker outlived its interpreter"
            time.sleep(0.05)


# ------------------------------------------------------------------------------------------------------ benchmark golds

DATA = os.environ.get("AT_GRPO_DATA")


def benchmark(name):
    if not DATA:
        pytest.skip("AT_GRPO_DATA names no folder with the benchmark files")
    with open(Path(DATA) / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines]


@pytest.mark.parametrize(
    ("name", "every"), [("aime24", 1), ("aime25", 1), ("math500", 8), ("olympiadbench", 8), ("gsm8k_test", 1)]
)
def test_golds_of_the_benchmarks(name, every):
    check_golds(benchmark(name), every)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math500", "olympiadbench", "gsm8k_train"])
def test_golds_of_the_benchmarks_all(name):
    check_golds(benchmark(name), 1)


def check_golds(golds, every):
    """Every gold equals itself in a box, also with more spaces; no gold equals the next one, if that is different."""
    pairs = list(pairwise(golds))[::every]
    first = [gold for gold, _ in pairs]
    spaced = [gold.replace("(", "( ").replace("+", " + ").replace("=", " = ") for gold in first]
    for spelling in (first, spaced):
        scores = score_answers([rf"So it is \boxed{{{gold}}}." for gold in spelling], first)
        assert [gold for gold, score in zip(first, scores, strict=True) if score != 1] == []
    # 5 and x=5 follow each other in MATH-500: spelled differently, but equal
    different = [pair for pair in pairs if clean(pair[0]) != clean(pair[1]) and pair != ("5", "x=5")]
    scores = score_answers(
        [rf"So it is \boxed{{{answer}}}." for _, answer in different], [gold for gold, _ in different]
    )
    assert [pair for pair, score in zip(different, scores, strict=True) if score != 0] == []


def test_golds_of_the_table():
    golds = list(dict.fromkeys(gold for gold, *_ in TABLE if gold not in ("1/0", "\\infty")))
    assert score_answers([rf"\boxed{{{gold}}}" for gold in golds], golds) == [1.0] * len(golds)
