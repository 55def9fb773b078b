;; `log-filter`: copies the lines that have a quote, a space and a 5 one after the other.
(module
  (memory (export "memory") 2)
  ;; From `at`, so many octets, to `out`; gives how many octets were kept.
  (func (export "filter") (param $at i32) (param $bytes i32) (param $out i32) (result i32)
    (local $end i32) (local $line i32) (local $to i32) (local $keep i32) (local $last i32)
    (local $octet i32)
    (local.set $end (i32.add (local.get $at) (local.get $bytes)))
    (local.set $line (local.get $at))
    (local.set $to (local.get $out))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $octet (i32.load8_u (local.get $at)))
        ;; The last three octets, as one number.
        (local.set $last
          (i32.or
            (i32.and (i32.shl (local.get $last) (i32.const 8)) (i32.const 0xffffff))
            (local.get $octet)))
        (if (i32.eq (local.get $last) (i32.const 0x222035))
          (then (local.set $keep (i32.const 1))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (if (i32.or
              (i32.eq (local.get $octet) (i32.const 10))
              (i32.eq (local.get $at) (local.get $end)))
          (then
            (if (local.get $keep)
              (then
                (memory.copy
                  (local.get $to)
                  (local.get $line)
                  (i32.sub (local.get $at) (local.get $line)))
                (local.set $to
                  (i32.add (local.get $to) (i32.sub (local.get $at) (local.get $line))))))
            (local.set $line (local.get $at))
            (local.set $keep (i32.const 0))
            (local.set $last (i32.const 0))))
        (br $next)))
    (i32.sub (local.get $to) (local.get $out))))
