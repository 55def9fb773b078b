//! Each rule of the pass, with a function that needs it. Each case is compiled with and without its
//! rule, and must differ.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tools::{Plugin, run};

/// The expected result for the function `f`.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// A sync directly before the instruction with this text.
    Before(&'static str),
    /// Syncs, but none directly before the instruction with this text.
    NotBefore(&'static str),
    /// This number of syncs.
    Syncs(usize),
    /// No copy is turned, in any function.
    Left,
    /// The module has this text.
    Has(&'static str),
}
use Expected::{Before, Has, Left, NotBefore, Syncs};

/// Declarations of all C cases. `WORK` is work without memory, `COPY` a copy with work behind it.
const PRELUDE: &str = "\
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#define N 65536
#define WORK for (unsigned i = 0; i < 1000; i++) x = x * 3 + (i ^ x >> 3);
#define F unsigned f(P d, P s, unsigned x)
#define COPY memcpy(d, s, N); WORK
#define END return x; }
void g(void); void fill(char *);
typedef char *restrict P;
";

/// C cases: rule, code, expectation.
const C: &[(&str, &str, Expected)] = &[
    ("read-destination", "F { COPY x += d[5]; WORK END", Before("load i8, i8*")),
    ("write-destination", "F { COPY d[5] = 1; WORK END", Before("store i8 1")),
    ("write-source", "F { COPY s[5] = 2; WORK END", Before("store i8 2")),
    (
        "call",
        "unsigned f(unsigned x) {
              char *d = malloc(N), *s = malloc(N); s[x] = 1; memcpy(d, s, N);
              WORK g(); WORK x += d[x % N]; free(d); free(s); END",
        Before("@g()"),
    ),
    ("call-memory", "F { COPY memset(s, 1, 64); WORK END", Before("@llvm.memset")),
    ("inline-asm", "F { COPY asm volatile(\"nop\"); WORK END", Before("asm sideeffect")),
    (
        "musttail",
        "unsigned h(P, P, unsigned);
              F { COPY __attribute__((musttail)) return h(d, s, x); }",
        Before("musttail call"),
    ),
    ("noreturn", "F { COPY if (x == 3) abort(); WORK END", Before("@abort()")),
    ("indirect-call", "void (*p)(void); F { COPY p(); WORK END", Before("call void %")),
    (
        "lifetime",
        "F { { char t[N]; fill(t); memcpy(d, t, N); WORK } WORK END",
        Before("@llvm.lifetime.end"),
    ),
    (
        "stackrestore",
        "unsigned f(P d, unsigned x, unsigned k) { {
              char t[k]; fill(t); memcpy(d, t, N); WORK } WORK END",
        Before("@llvm.stackrestore"),
    ),
    ("return", "F { COPY END", Before("ret i32")),
    ("fence", "F { COPY __atomic_thread_fence(3); WORK END", Before("fence release")),
    (
        "atomic",
        "unsigned f(P d, P s, unsigned x, unsigned *restrict q) { COPY
              __atomic_store_n(q, 1, __ATOMIC_RELAXED); WORK END",
        Before("store atomic"),
    ),
    (
        "atomic",
        "unsigned f(P d, P s, unsigned x, unsigned *restrict q) { COPY
              x += __atomic_fetch_add(q, 1, __ATOMIC_ACQ_REL); WORK END",
        Before("atomicrmw"),
    ),
    (
        "volatile",
        "volatile int flag;
              F { COPY flag = 1; WORK END",
        Before("store volatile"),
    ),
    ("back-edge", "F { do { COPY } while (x & 8); END", Syncs(2)),
    ("merge", "F { if (x & 1) { COPY } else g(); END", Syncs(1)),
    (
        "loop",
        "F { COPY
              for (unsigned i = 0; i < x; i++) x = x * 5 + d[x % N]; END",
        NotBefore("load i8, i8*"),
    ),
    ("threshold", "F { memcpy(d, s, 4095); WORK END", Left),
    ("window", "F { memcpy(d, s, N); x += d[5]; WORK END", Left),
    ("returns-twice", "jmp_buf b; F { if (setjmp(b)) g(); COPY END", Left),
    (
        "calling-convention",
        "__attribute__((preserve_most)) void f(P d, P s, unsigned *q) {
              unsigned x = 5; COPY *q = x; }",
        Left,
    ),
    (
        "annotation",
        "__attribute__((annotate(\"unlade_off\"))) F {
              COPY END",
        Left,
    ),
    (
        "signal-handler",
        "char a[N], b[N]; unsigned r;
              __attribute__((noinline)) static void deep(unsigned x) {
              memcpy(a, b, N); WORK r = x; }
              static void f(int n) { deep(n); }
              void (*handler)(int) = f;",
        Left,
    ),
    (
        "resolver",
        "char a[N], b[N]; unsigned r; static int one(void) { return 1; }
              static int (*f(void))(void) {
              unsigned x = r; memcpy(a, b, N); WORK r = x; return one; }
              int resolved(void) __attribute__((ifunc(\"f\")));",
        Left,
    ),
    (
        "size-test",
        "unsigned f(P d, P s, unsigned x, size_t n) {
              memcpy(d, s, n); WORK END",
        Has("unlade.is_long = icmp uge i64 %n, 4096"),
    ),
    (
        "overlap",
        "unsigned f(char *d, char *s, unsigned x) { memmove(d, s, N); WORK END",
        Has("br i1 %overlaps"),
    ),
];

/// Parts of the cases in LLVM's language: a copy of 64 KiB between two arguments, and work.
const LL_PRELUDE: &str = "\
target datalayout = \"e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-f80:128-n8:16:32:64-S128\"
target triple = \"x86_64-pc-linux-gnu\"
declare void @llvm.memcpy.p0i8.p0i8.i64(i8*, i8*, i64, i1)
declare void @llvm.memcpy.p1i8.p0i8.i64(i8 addrspace(1)*, i8*, i64, i1)
declare i32 @pure(i32) readnone willreturn nounwind
declare i32 @may_throw(i32) readnone willreturn
declare i32 @takes({i32, i32}* byval({i32, i32})) readnone willreturn nounwind
declare i32 @personality(...)
";
const LL_COPY: &str = "call void @llvm.memcpy.p0i8.p0i8.i64(i8* %d, i8* %s, i64 65536, i1 false)\n";

/// Cases in LLVM's language: rule, head, instructions, expectation.
const LL: &[(&str, &str, &str, Expected)] = &[
    (
        "unwind",
        "define i32 @f(i8* %d, i8* %s, i32 %x) {",
        "COPY WORK %y = call i32 @may_throw(i32 %x)\n ret i32 %y\n}",
        Before("@may_throw"),
    ),
    (
        "byval",
        "define i32 @f(i8* %d, i8* %s, i32 %x) nounwind {",
        "%p = bitcast i8* %d to {i32, i32}*\n COPY WORK
      %y = call i32 @takes({i32, i32}* byval({i32, i32}) %p)\n ret i32 %y\n}",
        Before("@takes"),
    ),
    (
        "terminator",
        "define i32 @f(i8* %d, i8* %s, i32 %x) personality i32 (...)* @personality {",
        "COPY WORK %y = invoke i32 @pure(i32 %x) to label %fine unwind label %pad
      fine:\n ret i32 %y
      pad:\n %q = landingpad {i8*, i32} cleanup\n ret i32 0\n}",
        Before("invoke"),
    ),
    (
        "coroutine",
        "define i32 @f(i8* %d, i8* %s, i32 %x) \"coroutine.presplit\"=\"0\" {",
        "COPY WORK ret i32 %x\n}",
        Left,
    ),
    ("naked", "define i32 @f(i8* %d, i8* %s, i32 %x) naked {", "COPY WORK ret i32 %x\n}", Left),
    (
        "no-builtins",
        "define i32 @f(i8* %d, i8* %s, i32 %x) \"no-builtins\" {",
        "COPY WORK ret i32 %x\n}",
        Left,
    ),
    (
        "volatile-copy",
        "define i32 @f(i8* %d, i8* %s, i32 %x) {",
        "call void @llvm.memcpy.p0i8.p0i8.i64(i8* %d, i8* %s, i64 65536, i1 true)
      WORK ret i32 %x\n}",
        Left,
    ),
    (
        "address-space",
        "define i32 @f(i8 addrspace(1)* %d, i8* %s, i32 %x) {",
        "call void @llvm.memcpy.p1i8.p0i8.i64(i8 addrspace(1)* %d, i8* %s, i64 65536, i1 false)
      WORK ret i32 %x\n}",
        Left,
    ),
];

/// The text of the function `f` in the module.
fn function(module: &str) -> &str {
    let head = module.lines().find(|line| line.starts_with("define") && line.contains("@f("));
    let begin = head.map_or(0, |head| module.find(head).unwrap());
    let text = &module[begin..];
    &text[..text.find("\n}").map_or(text.len(), |end| end + 2)]
}

/// Returns true if a sync is directly before the first instruction with the text.
fn is_synced_before(function: &str, text: &str) -> bool {
    let copy = function.find("@unlade.copy(").unwrap_or(0);
    let lines: Vec<&str> = function[copy..].lines().collect();
    let Some(at) = lines.iter().position(|line| line.contains(text)) else { return false };
    let is_between = |line: &&&str| {
        let parts = ["; preds", " = phi ", "  br label"];
        line.is_empty() || parts.iter().any(|part| line.contains(part))
    };
    lines[..at]
        .iter()
        .rev()
        .find(|line| !is_between(line))
        .is_some_and(|line| line.contains("@unlade.sync("))
}

fn holds(expected: Expected, module: &str) -> bool {
    let function = function(module);
    match expected {
        Before(text) => is_synced_before(function, text),
        NotBefore(text) => function.contains("@unlade.sync(") && !is_synced_before(function, text),
        Syncs(count) => function.matches("@unlade.sync(").count() == count,
        Left => !module.contains("@unlade.copy("),
        Has(text) => module.contains(text),
    }
}

/// Compiles a case. `None` if the compiler fails, which it may do without a rule only.
fn compiled(plugin: &Plugin, source: &Path, without: Option<&str>) -> Option<String> {
    let is_c = source.extension().is_some_and(|end| end == "c");
    let mut command = Command::new(if is_c { "clang-14" } else { "opt-14" });
    let path = plugin.path.display();
    match is_c {
        true => command.arg(format!("-fpass-plugin={path}")).args([
            "-O1",
            "-w",
            "-S",
            "-emit-llvm",
            "-fno-discard-value-names",
            "-fno-unroll-loops",
            "-o",
            "-",
        ]),
        false => command.arg(format!("-load-pass-plugin={path}")).args(["-passes=unlade", "-S"]),
    };
    command.arg(source).env_remove("UNLADE_CC_THRESHOLD").env_remove("UNLADE_CC_WINDOW");
    if let Some(rule) = without {
        command.env("UNLADE_WITHOUT", rule);
        let output = command.output().unwrap();
        return output.status.success().then(|| String::from_utf8(output.stdout).unwrap());
    }
    Some(String::from_utf8(run(&mut command).stdout).unwrap())
}

fn check(plugin: &Plugin, rule: &str, source: &Path, expected: Expected) {
    let module = compiled(plugin, source, None).unwrap();
    assert!(holds(expected, &module), "{rule}: expected {expected:?}\n{module}");
    if let Some(module) = compiled(plugin, source, Some(rule)) {
        assert!(!holds(expected, &module), "{rule}: {expected:?} also without the rule\n{module}");
    }
}

/// Work in LLVM's language: enough additions for the window.
fn ll_work(number: usize) -> String {
    let add = |n| format!("%w{number}.{n} = add i32 %x, {n}\n");
    (0..200).map(add).collect()
}

/// Checks every rule.
pub fn every_rule_is_needed(plugin: &Plugin, directory: &Path) {
    for (number, (rule, code, expected)) in C.iter().enumerate() {
        let source = directory.join(format!("{number}-{rule}.c"));
        fs::write(&source, format!("{PRELUDE}{code}\n")).unwrap();
        check(plugin, rule, &source, *expected);
    }
    for (rule, head, body, expected) in LL {
        let source = directory.join(format!("{rule}.ll"));
        let body = body.replace("COPY", LL_COPY).replace("WORK", &ll_work(0));
        fs::write(&source, format!("{LL_PRELUDE}{head}\n{body}\n")).unwrap();
        check(plugin, rule, &source, *expected);
    }
}

/// Checks that every rule that the sources name has a case here.
pub fn every_rule_has_a_case(sources: &Path) {
    let mut count = 0;
    for entry in fs::read_dir(sources).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in text.split("rule(\"").skip(1) {
            let name = part.split('"').next().unwrap();
            let is_known =
                C.iter().any(|case| case.0 == name) || LL.iter().any(|case| case.0 == name);
            assert!(is_known, "the rule {name} has no case");
            count += 1;
        }
    }
    assert!(count >= 30, "{count}");
}
