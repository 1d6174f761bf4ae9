"""Kinds of answers that were once confused: pairs that are equal, or not, both ways round."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.math_answers import math_equal, score_answers
from tasks.math_text import clean, without_units

PAIRS = r"""
# reported and first neighbours
3\mathrm{e}^2  !=  3
3\mathrm{e}^2  ==  3e^2
2+3\mathrm{i}  ==  2+3i
2+3\mathrm{i}  !=  5
2+3\mathrm{i}  !=  2+3
5\mathbf{v}  !=  5\mathbf{w}
5\mathbf{v}  !=  5
5\mathbf{v}  ==  5v
n \text{ is odd}  !=  n \text{ is even}
n \text{ is odd}  ==  n is odd
n \text{ is odd}  !=  n
4\text{ billion}  !=  4
4 billion  !=  4
4\text{ billion}  ==  4 billion
4 \text{ dozen}  !=  4
4 \text{ times}  !=  4
4 \text{ pairs}  !=  4
15\text{ cm}^2  ==  15
15\text{ cm}^2  ==  15 cm^2
15\text{ cm}^2  ==  15 \text{ square centimeters}
15\text{ cm}^2  !=  15\text{ cm}
15\text{ cm}  !=  15\text{ m}
12\mathrm{~kg}  ==  12
12\mathrm{~m/s}  ==  12 \text{ meters per second}
12\mathrm{~m/s}  ==  12
12\text{ m}/\text{s}^2  ==  12
60 mph  ==  60 \text{ miles per hour}
3\text{ hours}  !=  3\text{ minutes}
6 \text{ units}  ==  6
6 \text{ square units}  ==  6
11:00 \text{ a.m.}  !=  11:00 \text{ p.m.}
11:00 \text{ a.m.}  ==  11:00 AM
5 \text{ p.m.}  !=  5 \text{ a.m.}
5 \text{ p.m.}  !=  5
1 \pmod{3}  !=  1
1 \pmod{3}  ==  1 (mod 3)
1 \pmod{3}  ==  1 (\text{mod } 3)
1 \pmod{3}  !=  1 \pmod{5}
x \equiv 1 \pmod{3}  ==  1 \pmod 3
x \equiv 1 \pmod{3}  !=  x \equiv 2 \pmod{3}
5 \text{ or more}  !=  5
5 \text{ or more}  ==  5 or more
5 \text{ or more}  !=  5 \text{ or less}
5\% \text{ increase}  !=  5\%
5\% \text{ increase}  !=  5\% \text{ decrease}
5\% \text{ increase}  ==  5% increase
3 \text{ left}  !=  3 \text{ right}
2x \text{ if } x > 0  !=  2x
\text{at least } 5  !=  5
\text{at least } 5  !=  \text{at most } 5
\text{not } 5  !=  5
\text{Area} = 5  ==  5
\text{prime}  !=  \text{composite}
7 \text{ north}  !=  7 \text{ south}
x\text{ and }y  !=  x\text{ is }y
11:00  !=  6:00
11:00  !=  \frac{11}{0}
11:05  ==  11:05
9:05  ==  09:05
11:05  !=  11:50
2:30  !=  5:60
12:30  !=  0.4
1:30:00  !=  1:3
2:5:7  !=  \frac{2}{35}
2:5:7  ==  4:10:14
2:5:7  !=  2:7:5
2:5:7  !=  2:5
2:3  ==  4:6
2:3  !=  3:2
2:3  ==  20:30
3:4  ==  \frac{3}{4}
1:\sqrt{3}:2  ==  \frac12:\frac{\sqrt3}{2}:1
1:\sqrt{3}:2  !=  1:2:\sqrt3
\sqrt2:1  ==  2:\sqrt2
AB:BC=2:3  ==  2:3
x:y=2:3  ==  4:6
a:b  ==  2a:2b
\frac10  !=  \frac20
\frac10  !=  \infty
\frac10  !=  1/0+1
\tan 90^\circ  !=  \frac10
\infty  !=  -\infty
\infty  !=  2\infty
\infty  ==  +\infty
|x|  !=  x
|x|  !=  -x
|x|  ==  \sqrt{x^2}
|x-1|  !=  x-1
|x-1|  ==  |1-x|
|x-100|  !=  |x|-100
|n|  !=  n
|xy|  ==  |x||y|
|x+y|  !=  |x|+|y|
x \bmod 3  !=  x
x \bmod 3  !=  x \bmod 4
x \bmod 3  ==  x-3\lfloor x/3\rfloor
x \bmod 300  !=  x
\operatorname{rem}(x,3)  !=  x \bmod 3
\max(x,2)  !=  x
\max(x,2)  !=  2
\max(x,-x)  ==  |x|
\max(x,y)  ==  \frac{x+y+|x-y|}{2}
\min(x,y)  ==  x+y-\max(x,y)
\min(x,y)  !=  \max(x,y)
\max(x,500)  !=  x
\max\{x,2\}  ==  \max(2,x)
\max(x,0)  !=  x
\operatorname{sgn}(x)  !=  \operatorname{sgn}(x+1)
\operatorname{sgn}(x)  !=  1
\operatorname{sgn}(x)  !=  x
x\operatorname{sgn}(x)  ==  |x|
\operatorname{sgn}(x)  ==  \operatorname{sign}(x)
\lfloor x\rfloor  !=  x
\lfloor x\rfloor  !=  \lceil x\rceil
\lfloor x\rfloor  !=  \lceil x\rceil-1
\lfloor x\rfloor  !=  \lceil x-1\rceil
\lfloor x+1\rfloor  ==  \lfloor x\rfloor+1
\lfloor x+\frac12\rfloor  !=  \lceil x-\frac12\rceil
\lfloor x+\frac12\rfloor  ==  \operatorname{round}(x)
\lfloor x \rceil  ==  \operatorname{round}(x)
\lfloor x\rfloor  !=  \operatorname{round}(x)
\lfloor -x\rfloor  ==  -\lceil x\rceil
\lfloor -x\rfloor  !=  -\lfloor x\rfloor
\lfloor x/2\rfloor  !=  \lceil (x-1)/2\rceil
\lfloor n/2\rfloor  ==  \lceil (n-1)/2\rceil
\lfloor n/2\rfloor  !=  \lceil n/2\rceil
\lfloor 2x\rfloor  !=  2\lfloor x\rfloor
\lfloor 2x\rfloor  ==  \lfloor x\rfloor+\lfloor x+\frac12\rfloor
\operatorname{trunc}(x)  !=  \lfloor x\rfloor
\lfloor x/1000\rfloor  !=  \lfloor x/2000\rfloor
\lfloor|x|\rfloor  !=  |\lfloor x\rfloor|
\lfloor x\rfloor  !=  \lfloor x+\frac{1}{1000}\rfloor
2\log x  !=  \log x^2
\sqrt{x^2}  !=  x
(p,q)=(5,-2)  ==  (5,-2)
(p,q)=(5,-2)  !=  (-2,5)
(p,q)=(5,-2)  ==  (q,p)=(-2,5)
(p,q)=(5,-2)  ==  p=5,q=-2
(p,q)=(5,-2)  !=  p=-2,q=5
(x,y,z)=(1,2,3)  ==  (1,2,3)
(x,y,z)=(1,2,3)  !=  (3,2,1)
(p,q)=(5,-2)  !=  (p,r)=(5,-2)
(a_1,a_2)=(1,2)  ==  (1,2)
\{x \mid x\ge4\}  ==  [4,\infty)
\{x \mid x\ge4\}  ==  x\ge4
\{x \mid x\ge4\}  !=  (4,\infty)
\{x : x\ge4\}  ==  [4,\infty)
\{x\in\mathbb{R} : x\ge4\}  ==  [4,\infty)
\{x\in\mathbb{R} \mid x\ge4\}  ==  \{y \mid y \geq 4\}
\{x \mid x\in\mathbb{R}, x\ge4\}  ==  [4,\infty)
\{x\in\mathbb{Z} : x\ge4\}  !=  [4,\infty)
\{x \mid 2<x\le5\}  ==  (2,5]
\{x \mid 2<x\le5\}  !=  [2,5]
\{x \mid x>2 \text{ and } x<5\}  ==  (2,5)
\{x \mid x>2, x<5\}  ==  (2,5)
\{x \mid x<2 \text{ or } x>5\}  ==  (-\infty,2)\cup(5,\infty)
\{x \mid x<2 \text{ or } x>5\}  ==  x<2 \text{ or } x>5
\{x \mid x\ne3\}  ==  (-\infty,3)\cup(3,\infty)
\{x | x<3\}  ==  (-\infty,3)
x>2 \text{ and } x<5  ==  (2,5)
x>2 \text{ and } x<5  !=  x>2 \text{ or } x<5
x<5 \land x>2  ==  2<x<5
1e-7  ==  10^{-7}
1e-7  !=  10^{-6}
10^{9}  ==  1e9
10^{9}  !=  1e8
1e9  ==  1{,}000{,}000{,}000
2.5e3  ==  2500
1E3  ==  1000
-1e-3  ==  -0.001
(1e3,2)  ==  (10^3,2)
1.5\times10^{-3}  ==  1.5e-3
\sqrt[3]{-27}  ==  -3
-\sqrt[3]{5}  ==  \sqrt[3]{-5}
\sqrt[3]{-5}  !=  \sqrt[3]{5}
(-8)^{1/3}  ==  -2
(-32)^{1/5}  ==  -2
\sqrt[5]{-2}  ==  -\sqrt[5]{2}
\sqrt[3]{x^3}  ==  x
\sqrt[3]{-x}  ==  -\sqrt[3]{x}
x^{1/3}  ==  \sqrt[3]{x}
(-8)^{2/3}  ==  4
\sqrt{-4}  ==  2i
\sqrt[3]{-27}  !=  3
（3，4）  ==  (3,4)
（3，4）  !=  (4,3)
⅔  ==  \frac23
1⅔  ==  \frac53
x⁴  ==  x^4
x⁻¹  ==  \frac1x
x¹²  ==  x^{12}
∛2  ==  \sqrt[3]{2}
∜16  ==  2
√12  ==  2\sqrt3
１２  ==  12
３．５  ==  3.5
－５  ==  -5
50％  ==  50\%
a₁  ==  a_1
𝑥  ==  x
ℝ  ==  \mathbb{R}
⌊x⌋  ==  \lfloor x\rfloor
3∶4  ==  3:4
x⁴  !=  x^3
\gcd(n,12)  !=  1
5 5  !=  10
2 3  !=  5
6  !=  4 2
5\cup  !=  5
5 +  !=  5
\{5,\}  !=  \{5,6\}
4\text{ m}  ==  4
4m  !=  4
7\text{ apples}  !=  7\text{ oranges}
30^\circ  ==  30
\frac{1}{3}\text{ of the total}  !=  \frac13
\text{June } 5  !=  5
\text{June } 5  ==  June 5
\$5  ==  5 \text{ dollars}
3 + 4i  !=  7
2\text{e}  ==  2e
100\text{ m}  !=  100 \text{ km}
1{,}000\text{ million}  !=  1000
-5\text{ million}  !=  -5
2.5\text{ thousand}  !=  2.5
3\text{rd}  !=  3
2\pi\text{ rad}  ==  2\pi
18 \text{ years old}  !=  18 \text{ years ago}
x=3 \text{ or } x=5  ==  3,5
x=3 \text{ and } y=5  ==  x=3,y=5
x_1=3, x_2=5  !=  5,3,1
(1,2),(3,4)  ==  (3,4) \text{ and } (1,2)
# neighbours
3\mathrm{e}^{2}  !=  3\mathrm{e}^{3}
5\mathrm{i}  !=  5
7\mathrm{x}  !=  7
7\mathsf{k}  !=  7
2\mathbf{i}+3\mathbf{j}  !=  2\mathbf{i}
2\mathbf{i}+3\mathbf{j}  !=  5
3\text{ a.m.}  !=  3\text{ p.m.}
8:30 \text{ PM}  !=  8:30\text{ AM}
n \text{ is prime}  !=  n \text{ is composite}
4\text{ hundred}  !=  4
4\text{ million}  !=  4\text{ billion}
10\text{ more}  !=  10
10\text{ or less}  !=  10\text{ or more}
10\text{ decrease}  !=  10\text{ increase}
20\%\text{ decrease}  !=  20\%
5 \text{ (mod 7)}  !=  5
5 \text{ (mod 7)}  ==  5 \pmod 7
5 \text{ (mod 7)}  !=  5 \pmod 9
x \text{ is even}  !=  y\text{ is even}
12\text{ kg}  ==  12
12\text{ kg}  ==  12 kilograms
3.5\text{ hours}  ==  3.5
120 \text{ cm}^3  ==  120
120\text{ km/h}  ==  120
100^\circ\text{C}  ==  100
5 \text{ feet}  ==  5 ft
5 \text{ minutes}  ==  5
$7.50  ==  7.5
2^{10}\text{ bytes}  ==  1024
\frac{5}{3}\text{ m}  ==  \frac53
6\sqrt{2}\text{ cm}  ==  6\sqrt2
12:00  !=  6:00
7:30  !=  7:03
1:2  !=  1:3
1:2:3  ==  2:4:6
3:6:9  ==  1:2:3
1:2:3  !=  \frac{1}{6}
0.5:1  ==  1:2
10:15  !=  12:18
23:59  ==  23:59
\frac{1}{0}  !=  \frac{2}{0}
\frac{-1}{0}  !=  \frac{1}{0}
\log 0  !=  \frac{-1}{0}
|x+2|  !=  x+2
|x|^3  !=  x^3
|x|^2  ==  x^2
|x-3|+|x+3|  !=  2x
|x-3|+|x+3|  !=  6
x \bmod 5  !=  x \bmod 10
x \mod 2  !=  x
\lfloor x\rfloor+\lfloor -x\rfloor  !=  0
\lfloor x\rfloor+\lfloor -x\rfloor  !=  -1
x-\lfloor x\rfloor  ==  x \bmod 1
x-\lfloor x\rfloor  !=  x
\lceil x/3\rceil  !=  \lfloor (x+2)/3\rfloor
\lceil n/3\rceil  ==  \lfloor (n+2)/3\rfloor
\lfloor m/2\rfloor+\lceil m/2\rceil  ==  m
\lfloor x/2\rfloor+\lceil x/2\rceil  !=  x
\max(a,b)+\min(a,b)  ==  a+b
\max(a,b)\min(a,b)  ==  ab
\max(a,b)  !=  a
\max(x,x^2)  !=  x^2
\min(x,x^3)  !=  x^3
\sqrt{x^4}  ==  x^2
\sqrt{(x-1)^2}  !=  x-1
\operatorname{sgn}(x)  ==  \frac{x}{|x|}
\operatorname{sgn}(x^2)  !=  1
\operatorname{sign}(x^3)  ==  \operatorname{sign}(x)
\operatorname{floor}(x)  ==  \lfloor x\rfloor
\operatorname{ceil}(x)  ==  \lceil x\rceil
\operatorname{abs}(x)  ==  |x|
\text{floor}(x)  !=  \text{ceil}(x)
\operatorname{round}(x)  !=  \lceil x\rceil
\lfloor x \rceil  !=  \lfloor x\rfloor
\operatorname{frac}(x)  !=  x
\{x\}  !=  x-\lfloor x\rfloor+1
\arctan(\tan x)  !=  x
\arcsin(\sin x)  !=  x
\ln x^2  ==  2\ln|x|
e^{\ln x}  ==  x
(a,b)=(3,4)  ==  (3,4)
(a,b)=(3,4)  !=  (4,3)
(m,n) = (2,7)  ==  (2,7)
(x, y, z) = (1, -1, 0)  ==  (1,-1,0)
(x_1,x_2)=(1,2)  ==  (1,2)
\left(a,b\right)=\left(3,4\right)  ==  (3,4)
\{t \mid t<0\}  ==  (-\infty,0)
\{x \mid x > 0\}  !=  [0,\infty)
\{x \in \mathbb{R} \mid -1 \leq x < 1\}  ==  [-1,1)
\{x : -1 \leq x < 1\}  !=  (-1,1)
\left\{x \mid x \geq 4\right\}  ==  [4,\infty)
\left\{x \,\middle|\, x \geq 4\right\}  ==  [4,\infty)
\{x\mid x\neq 0\}  ==  (-\infty,0)\cup(0,\infty)
\{x\mid x\le -1 \text{ or } x\ge1\}  ==  (-\infty,-1]\cup[1,\infty)
\{ x \in \mathbb R : x > 3 \}  ==  x>3
\{x \mid x^2<4\}  !=  (-2,3)
\{x\mid 4\le x\}  ==  [4,\infty)
6.02e23  ==  6.02\times10^{23}
1.0e-3  ==  \frac{1}{1000}
5e-1  ==  \frac12
1e3  !=  1e4
-2e2  ==  -200
2\times10^{5}  ==  2e5
2e5  !=  2\times10^{6}
1e+6  ==  10^6
\sqrt[3]{-8}  ==  -2
\sqrt[3]{-1}  ==  -1
\sqrt[5]{-32}  ==  -2
\sqrt[7]{-3}  ==  -\sqrt[7]{3}
2\sqrt[3]{-2}  ==  -2\sqrt[3]{2}
\sqrt[3]{-2}  ==  -2^{1/3}
\sqrt[3]{1-\sqrt{5}}  ==  -\sqrt[3]{\sqrt5-1}
\sqrt[3]{-16}  ==  -2\sqrt[3]{2}
\sqrt[3]{-x^3}  ==  -x
ｘ＋１  ==  x+1
［０，１］  ==  [0,1]
｛１，２｝  ==  \{1,2\}
¾  ==  0.75
2½  ==  \frac52
⅓  ==  \frac{1}{3}
⅞  ==  0.875
x² + y²  ==  x^2+y^2
x³  ==  x^3
2⁵  ==  32
10⁻³  ==  0.001
∛27  ==  3
∛(x)  ==  \sqrt[3]{x}
√２  ==  \sqrt2
π  ==  \pi
½ + ⅓  ==  \frac56
Ｃ  ==  C
１：２  ==  1:2
aⁿ  ==  a^n
x₁  ==  x_1
3×10⁸  ==  3e8
12㎝  ==  12
½x  ==  \frac{x}{2}
5 km  !=  5 mi
\text{5 km}  ==  5
\text{5 hours}  ==  5
\text{5 billion}  !=  5
\text{x is odd}  ==  x \text{ is odd}
\text{11:00 am}  ==  11:00 a.m.
\text{11:00}  ==  11:00
(\text{A})  ==  A
\mathrm{(A)}  ==  A
\textbf{(A)}\ 5  !=  A
\text{even}  !=  \text{odd}
x=\text{even}  !=  x=\text{odd}
f(x)=|x|  !=  f(x)=x
y=|x|  !=  y=x
x=1\text{ and }y=2  ==  (x,y)=(1,2)
x\in[2,5)  ==  2\le x<5
x \geq 2 \text{ and } x \leq 5  ==  [2,5]
2 \text{ and } 3  ==  2,3
2 \text{ or } 3  ==  2,3
10\text{ dollars}  ==  \$10
10\text{ dollars}  !=  10\text{ cents}
3 \text{ km}  !=  3\text{ m}
\mathrm{lcm}(4,6)  ==  12
\gcd(12,18)  ==  6
\gcd(n,n+1)  ==  \gcd(n,n+1)
\binom{n}{2}  ==  \frac{n(n-1)}{2}
(-1)^n  ==  \cos(n\pi)
(-1)^n  !=  1
(-1)^{2n}  ==  1
n!  ==  n(n-1)!
\frac{n!}{n}  !=  n!
2^{-1}  ==  \frac12
\sin x  !=  x
x^{2/3}  ==  \sqrt[3]{x^2}
\frac{x}{|x|}  !=  1
\text{3 dozen}  !=  3
3\text{-digit}  !=  3
3\times  !=  3
x\text{ metres}  ==  x
5\,\mathrm{cm}  ==  5
5~\text{cm}  ==  5
5\text{cm}  ==  5
5 \mathrm{cm}^{2}  ==  5
\pi\text{ cm}  ==  \pi
(3,4)\text{ cm}  ==  (3,4)
3 \text{ and } 4\text{ cm}  ==  3,4
5\text{ per hour}  !=  5
1.5\text{ m/s}^2  ==  1.5
\text{about } 5  !=  5
5\text{ approximately}  !=  5
5\text{ BC}  !=  5\text{ AD}
5\text{ C}  !=  5\text{ F}
4^\text{th}  !=  4
4^{\text{th}}  !=  4
4\text{th}  !=  4
2\text{ to }1  !=  2
5\mathrm{d}  !=  5
3\mathrm{D}  !=  3
10\text{ of them}  !=  10
45^\circ\text{ N}  !=  45^\circ\text{ S}
45^\circ\text{ north}  !=  45^\circ
x\text{-axis}  !=  x
x\text{-axis}  !=  y\text{-axis}
\text{both } 3 \text{ and } 4  !=  3,4
\text{row } 3  !=  \text{column } 3
2n \text{ for even } n  !=  2n
6:00  !=  6
6:00  !=  1:00
10:30 \text{ a.m.}  !=  10:03\text{ a.m.}
0:1  !=  0:0
1:0  !=  2:0
\infty-\infty  !=  0
\frac{\infty}{2}  !=  \infty
-\frac10  !=  \frac10
0^{-1}  !=  \frac10
\frac{x}{0}  !=  \frac{y}{0}
\{x\mid x>4\}  ==  (4,\infty)
\{x:x>4\}  !=  (5,\infty)
\{x\mid x>4\}  !=  \{4\}
\{4\}  ==  4
\{n\in\mathbb{Z}\mid n\ge4\}  !=  [4,\infty)
\{n\in\mathbb{N} : n<4\}  !=  (-\infty,4)
\{x\in\mathbb{R}\mid x\ne2\}  ==  \mathbb{R}\setminus\{2\}
\{x \mid x \in \mathbb{R}\}  ==  \mathbb{R}
\{(x,y) \mid x=y\}  !=  \{(x,y)\mid x=-y\}
\{x\in\mathbb{R}\}  ==  \mathbb{R}
x\in\mathbb{R}  ==  (-\infty,\infty)
\{x \mid 0 \le x \le 1\}  ==  0\le x\le1
\{x \mid 1 < x\}  ==  (1,\infty)
(p, q) = (5, -2)  ==  (5, -2)
(p,q)=(5,-2),(1,1)  ==  (5,-2),(1,1)
(p,q)\in\{(1,2),(3,4)\}  ==  \{(3,4),(1,2)\}
1e-7  ==  0.0000001
1e10  ==  10000000000
1E-7  ==  10^{-7}
3.0e8  ==  3\times10^8
1e400  !=  1e401
1e-7  !=  0
\sqrt[3]{-x}  !=  \sqrt[3]{x}
\sqrt[3]{x^2}  ==  \sqrt[3]{(-x)^2}
\sqrt{x}\sqrt{x}  ==  x
\sqrt[4]{x^4}  ==  |x|
\sqrt[3]{x^3+y^3}  !=  x+y
\sqrt[3]{\frac{-1}{8}}  ==  -\frac12
（１，２］  ==  (1,2]
２＜ｘ≤５  ==  (2,5]
①  !=  2
３：４  ==  6:8
２π  ==  2\pi
x′  ==  x'
⁵√32  !=  2
4⅔  ==  \frac{14}{3}
−⅔  ==  -\frac23
x²⁰  ==  x^{20}
2ˣ  ==  2^x
"""
TABLE = [line for line in PAIRS.strip().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("line", TABLE)
def test_pair_both_ways_round(line):
    mark = "==" if "  ==  " in line else "!="
    left, right = line.split(f"  {mark}  ")
    assert math_equal(gold=left, answer=right) is (mark == "==")
    assert math_equal(gold=right, answer=left) is (mark == "==")


def test_the_table_has_both_verdicts():
    assert len(set(TABLE)) == len(TABLE)
    assert min(sum(f"  {mark}  " in line for line in TABLE) for mark in ("==", "!=")) > 90


@pytest.mark.parametrize(
    ("text", "rest", "unit"),
    [
        ("15 cm^2", "15", "cm2"),
        (r"15\text{ square centimeters}", "15", "cm2"),
        ("60 mph", "60", "mi / h"),
        (r"60\text{ miles per hour}", "60", "mi / h"),
        (r"9.8\mathrm{~m}/\mathrm{s}^2", "9.8", "m / s2"),
        (r"6\text{ square units}", "6", ""),
        (r"6\text{ apples}", r"6\text{apples}", ""),
        (r"\text{cm}", r"\text{cm}", ""),
        ("6m", "6m", ""),
    ],
)
def test_units(text, rest, unit):
    assert without_units(clean(text)) == (rest, unit)


# ------------------------------------------------------------------------------------------------------------ tolerance


@pytest.mark.parametrize(
    ("gold", "answer", "tolerance", "equal"),
    [
        ("4.2", "4.23", 0.1, True),
        ("4.2", "4.3", 0.1, True),
        ("4.2", "4.35", 0.1, False),
        ("4.2", "4.23", None, False),
        ("4.2", "4.23", 0, False),
        ("4.2", "4.21", 1e-4, False),
        ("4.2", "4.2001", 1e-4, True),
        ("4.2", r"\frac{17}{4}", 0.1, True),
        ("4.2", r"3\sqrt{2}", 0.1, True),
        ("4.2", r"3\sqrt{2}", 1e-3, False),
        (r"3\sqrt{2}", "4.2", 0.1, True),
        (r"3\sqrt{2}", "4.1", 0.1, False),
        ("x=4.2", "4.25", 0.1, True),
        ("4.2", "x", 10, False),
        (r"4.2\text{ kg}", "4.23", 0.1, True),
        ("1.5,2.5", "2.52, 1.52", 0.05, True),
        ("1.5,2.5", "2.6, 1.52", 0.05, False),
        ("1.5,2.5", "1.6,2.5", (0.1, 0.001), True),
        ("1.5,2.5", "1.5,2.6", (0.1, 0.001), False),
        ("(1.5,2.5)", "(1.6,2.5)", (0.1, 0.001), True),
        ("x+1", "x+1.01", 0.1, False),
    ],
)
def test_the_tolerance_of_the_problem(gold, answer, tolerance, equal):
    assert math_equal(gold=gold, answer=answer, tolerance=tolerance) is equal
    assert score_answers([rf"\boxed{{{answer}}}"], [gold], tolerance=[tolerance]) == [float(equal)]


def test_as_many_tolerances_as_golds():
    with pytest.raises(ValueError, match="2 tolerances"):
        score_answers([r"\boxed{5}"], ["5"], tolerance=[None, None])


# --------------------------------------------------------------------------------------- marks alone answer no question

GOLDS = [
    "42", "-6", "0", "1", r"\frac12", "5/8", "0.25", r"\pi", r"\sqrt2", "2^{10}", "x", "x+1", "x^2-1", "x=5", "y=2x+3",
    "3,7", r"\{1,2\}", "(1,2)", "[0,1)", r"(-\infty,2)\cup(3,\infty)", r"2<x\le5", r"x\ge4", r"\text{Tuesday}",
    r"\text{(C)}", r"35\%", "52_8", "3+4i", r"\begin{pmatrix}1\\2\end{pmatrix}", "11:00", r"15\text{ cm}^2",
]  # fmt: skip
_MARKS = r"""
\cup \cap \in \le \ge \ne < > = \pm \times \cdot + - * / ^ _ ! ' | : ; , . \% & \\ ( ) [ ] \{ \} { } \left \right
\frac \sqrt \sum \int \log \sin \mid \setminus \land \lor \to \approx \equiv \text{and} \text{or} \text{cm} \text{is}
and or the answer unknown units $ ~ \, \quad \circ \lfloor \rfloor \max \gcd \bmod \pmod \begin{pmatrix} \end{pmatrix}
\text{ \overline{ \langle \rangle \div \ldots \binom # @ ∪ × ÷ √ ≤ （ ） ，
"""
MARKS = _MARKS.split()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(MARKS), min_size=1, max_size=6), st.sampled_from(["", " "]))
def test_no_string_of_marks_and_words_scores(marks, glue):
    answer = glue.join(marks)
    scores = score_answers([rf"\boxed{{{answer}}}"] * len(GOLDS), GOLDS)
    assert [gold for gold, score in zip(GOLDS, scores, strict=True) if score] == []
    assert not any(math_equal(gold=gold, answer=answer) for gold in GOLDS)


def test_one_mark_or_two_marks_score_nowhere():
    """Every single mark, and some pairs, against golds of every kind."""
    pairs = random.Random(3).sample(list(itertools.product(MARKS, MARKS)), 40)
    answers = [*MARKS, *("".join(pair) for pair in pairs)]
    golds = ["42", "x=5", "3,7", r"\{1,2\}", r"(-\infty,2)\cup(3,\infty)"]
    wrong = [(gold, answer) for answer in answers for gold in golds if math_equal(gold=gold, answer=answer)]
    assert wrong == []
