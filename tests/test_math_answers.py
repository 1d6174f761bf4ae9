"""Answers found and compared: a long table of pairs, the benchmark golds, hostile input, threads, the worker pool."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import math_answers
from envs import InfraError
from math_answers import extract_answer, math_equal, score_answers

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
TABLE = [
    (gold.strip(), answer.strip(), verdict.strip() == "1")
    for gold, answer, verdict in (
        line.replace("|x|", "\0").split("|") for line in PAIRS.strip().splitlines() if not line.startswith("#")
    )
]
TABLE = [(gold.replace("\0", "|x|"), answer.replace("\0", "|x|"), verdict) for gold, answer, verdict in TABLE]


@pytest.mark.parametrize(("gold", "answer", "equal"), TABLE)
def test_pair(gold, answer, equal):
    assert math_equal(gold=gold, answer=answer) is equal
    assert math_equal(gold=rf"\boxed{{{gold}}}", answer=rf"\fbox{{{answer}}}") is equal
