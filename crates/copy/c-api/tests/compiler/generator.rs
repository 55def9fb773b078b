//! Random C programs with copies, branches, loops, calls and aliases. Every access is in bounds,
//! and `memcpy` gets ranges that are apart.

use std::fmt::Write as _;

/// Bytes of a buffer. A pointer has at least half of them behind it.
const BUFFER_BYTES: u64 = 1024;
const REACH: u64 = BUFFER_BYTES / 2;
/// Number of functions; each calls later ones only.
const FUNCTIONS: usize = 6;
/// Nesting of statements.
const DEPTH_MAX: usize = 3;

/// Declarations of all programs. `copy` is `memcpy` where that is allowed.
const PRELUDE: &str = "\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned char B;
enum { L = 1024, H = L / 2 };
struct big { B bytes[H]; };
static B G[4][L];
B shared[L];
volatile unsigned flag;
static unsigned steps;
#define APART(p, q, n) ((size_t)((p) - (q)) >= (n) && (size_t)((q) - (p)) >= (n))
#define COPY(p, q, n) do { if (APART(p, q, n)) memcpy(p, q, n); else memmove(p, q, n); } while (0)
#define WORK(k) for (unsigned w = 0; w < (k); w++) x = x * 3 + (w ^ x >> 5)
__attribute__((noinline)) static unsigned pure(unsigned x) { return x * 17 + (x >> 3); }
__attribute__((noinline)) static unsigned reads(const B *p, unsigned x) { return p[x % H] + x; }
__attribute__((noinline)) static void writes(B *p, unsigned x) { p[x % H] = (B)x; }
";

/// A generator of programs: a xorshift of its seed.
pub struct Generator {
    state: u64,
    text: String,
    temporaries: usize,
    is_in_loop: bool,
}

impl Generator {
    pub fn new(seed: u64) -> Generator {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Generator { state, text: String::new(), temporaries: 0, is_in_loop: false }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % limit
    }

    fn line(&mut self, text: impl AsRef<str>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{}", text.as_ref());
    }

    /// Generates a program.
    pub fn program(mut self) -> String {
        self.text.push_str(PRELUDE);
        for number in (0..FUNCTIONS).rev() {
            self.function(number);
        }
        self.line("int main(void) {");
        self.line("unsigned x = 1;");
        self.line("for (int g = 0; g < 4; g++) for (int i = 0; i < L; i++)");
        self.line("G[g][i] = (B)(i * 7 + g * 31 + (i >> 3));");
        self.line("for (int i = 0; i < L; i++) shared[i] = (B)(i * 5);");
        for _ in 0..8 {
            let [a, b, number] = [4, 4, FUNCTIONS as u64].map(|limit| self.below(limit));
            let [at, n] = [self.below(REACH), self.below(REACH)];
            self.line(format!("x = f{number}(G[{a}] + {at}, G[{b}], {n}, x);"));
            self.line(
                "{ unsigned sum = x; for (int i = 0; i < L; i++) sum = sum * 31 + shared[i];",
            );
            self.line("for (int g = 0; g < 4; g++) for (int i = 0; i < L; i++)");
            self.line("sum = sum * 31 + G[g][i]; printf(\"%u\\n\", sum); }");
        }
        self.line("return 0;\n}");
        self.text
    }

    fn function(&mut self, number: usize) {
        let linkage = ["static ", "", "__attribute__((noinline)) static "][self.below(3) as usize];
        self.line(format!("{linkage}unsigned f{number}(B *a, B *b, unsigned n, unsigned x) {{"));
        self.line("B l0[L], l1[L]; for (int i = 0; i < L; i++) l0[i] = l1[i] = (B)(i * 3 + x);");
        self.line("B *c = l0, *d = shared; struct big s0, s1; memset(&s0, 1, sizeof s0); s1 = s0;");
        self.line("if (++steps > 3000) exit(0);");
        for _ in 0..6 + self.below(10) {
            self.statement(number, 0);
        }
        // The others end with pending copies.
        if number.is_multiple_of(2) {
            self.line("x += l0[x % L] + l1[x % L] + s0.bytes[x % H] + s1.bytes[x % H];");
        }
        self.line("return x;\n}");
    }

    /// A pointer with REACH bytes behind it.
    fn pointer(&mut self) -> String {
        let base =
            ["a", "b", "c", "d", "l0", "l1", "G[1]", "G[2]", "shared", "s0.bytes", "s1.bytes"];
        let place = self.below(base.len() as u64) as usize;
        // The arrays have all their bytes behind them.
        let is_array = (4..=8).contains(&place);
        match is_array && self.below(2) == 0 {
            true => format!("({} + {})", base[place], self.below(REACH)),
            false => base[place].to_owned(),
        }
    }

    fn length(&mut self) -> String {
        match self.below(4) {
            0 => "n".to_owned(),
            1 => format!("(x % {REACH})"),
            _ => (64 + self.below(REACH - 64)).to_string(),
        }
    }

    fn block(&mut self, number: usize, depth: usize) {
        self.line("{");
        for _ in 0..1 + self.below(4) {
            self.statement(number, depth + 1);
        }
        self.line("}");
    }

    fn statement(&mut self, number: usize, depth: usize) {
        match self.below(if depth < DEPTH_MAX { 30 } else { 20 }) {
            0..=6 => self.copy(),
            7 | 8 => {
                let count = self.below(60);
                self.line(format!("WORK({count});"));
            }
            9..=18 => self.access(number),
            19 => self.leave(),
            20 | 21 => self.scope(number, depth),
            22 => self.heap(number, depth),
            23..=25 => {
                let bit = self.below(6);
                self.line(format!("if (x >> {bit} & 1)"));
                self.block(number, depth);
                if self.below(2) == 0 {
                    self.line("else");
                    self.block(number, depth);
                }
            }
            26 => self.choice(number, depth),
            _ => self.cycle(number, depth),
        }
    }

    fn copy(&mut self) {
        let (to, from, length) = (self.pointer(), self.pointer(), self.length());
        let copy = ["COPY", "COPY", "memmove"][self.below(3) as usize];
        match self.below(8) {
            0 => self.line("s0 = s1;"),
            1 => self.line("s1 = s0;"),
            _ => self.line(format!("{copy}({to}, {from}, {length});")),
        }
        // Most copies get a window.
        if self.below(3) > 0 {
            let count = 10 + self.below(50);
            self.line(format!("WORK({count});"));
        }
    }

    fn access(&mut self, number: usize) {
        let (p, q) = (self.pointer(), self.pointer());
        let at = self.below(REACH);
        match self.below(15) {
            0..=2 => self.line(format!("x = x * 5 + {p}[{at}];")),
            3 | 4 => self.line(format!("x += {p}[x % H];")),
            5 | 6 => self.line(format!("{p}[{at}] = (B)x;")),
            7 => self.line(format!("{p}[x % H] = (B)x;")),
            8 => self.line(format!("x = pure(x) + reads({p}, x);")),
            9 => self.line(format!("writes({p}, x);")),
            10 => self.line(format!("c = x & 1 ? {p} : {q};")),
            11 => self.line("d = x & 2 ? c : d;"),
            12 => {
                let length = self.length();
                self.line(format!("memset({p}, (int)x, {length});"));
            }
            13 => self.line("flag = x; __atomic_thread_fence(__ATOMIC_SEQ_CST);"),
            _ if number + 1 < FUNCTIONS => {
                let callee = number + 1 + self.below((FUNCTIONS - number - 1) as u64) as usize;
                // A callee's pointers do not outlive its call, so any may be passed.
                self.line(format!("x += f{callee}({p}, {q}, x % H, x);"));
            }
            _ => self.line("x ^= 0x55;"),
        }
    }

    fn leave(&mut self) {
        let mask = 15 + 16 * self.below(8);
        let way = match (self.is_in_loop, self.below(3)) {
            (true, 0) => "break",
            (true, 1) => "continue",
            _ => "return x",
        };
        self.line(format!("if ((x & {mask}) == 3) {way};"));
    }

    /// A scope whose array is copied into and out of: its stack memory is used again later.
    fn scope(&mut self, number: usize, depth: usize) {
        let name = self.temporary();
        let (p, q) = (self.pointer(), self.pointer());
        let declared = ["H", "H + (x & 7)"][self.below(2) as usize];
        self.line(format!("{{ B {name}[{declared}]; COPY({name}, {p}, H); WORK(30);"));
        if self.below(2) == 0 {
            self.block(number, depth);
        }
        self.line(format!("COPY({q}, {name}, {REACH}); WORK(30); }}"));
    }

    fn heap(&mut self, number: usize, depth: usize) {
        let name = self.temporary();
        let (p, q) = (self.pointer(), self.pointer());
        self.line(format!(
            "{{ B *{name} = malloc(H); if (!{name}) abort(); memcpy({name}, {p}, H); WORK(40);"
        ));
        let is_left_open = self.is_in_loop;
        // A jump out of the scope would leak, which is no error here.
        self.block(number, depth);
        self.is_in_loop = is_left_open;
        self.line(format!("COPY({q}, {name}, H); WORK(40); free({name}); }}"));
    }

    fn choice(&mut self, number: usize, depth: usize) {
        let was = std::mem::replace(&mut self.is_in_loop, false);
        self.line("switch (x & 3) {");
        for case in 0..3 {
            self.line(format!("case {case}:"));
            self.block(number, depth);
            if self.below(3) > 0 {
                self.line("break;");
            }
        }
        self.line("default: x++; }");
        self.is_in_loop = was;
    }

    fn cycle(&mut self, number: usize, depth: usize) {
        let was = std::mem::replace(&mut self.is_in_loop, true);
        let (count, name) = (1 + self.below(4), self.temporary());
        self.line(format!("for (unsigned {name} = 0; {name} < {count}; {name}++)"));
        self.block(number, depth);
        self.is_in_loop = was;
    }

    fn temporary(&mut self) -> String {
        self.temporaries += 1;
        format!("t{}", self.temporaries)
    }
}
