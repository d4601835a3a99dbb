(module
  (memory (export "memory") 1)
  ;; A counter: 8 bytes at 0x9000, named by an immutable global.
  (data (i32.const 0x9000) "\00\00\00\00\00\00\00\00")
  (global (export "tam_counter_dropped") i32 (i32.const 0x9000))

  (func (export "on_packet") (result i32)
    (local $l3 i32)
    ;; ip_version, at 13 of the metadata
    (if (i32.ne (i32.load8_u (i32.const 0x800d)) (i32.const 4))
      (then (return (i32.const 0))))
    ;; l3_offset, at 8; the TTL lies 8 bytes after it
    (local.set $l3 (i32.load16_u (i32.const 0x8008)))
    ;; window_length, at 4: is the TTL in the window?
    (if (i32.ge_u (i32.add (local.get $l3) (i32.const 8)) (i32.load (i32.const 0x8004)))
      (then (return (i32.const 0))))
    (if (i32.lt_u
          (i32.load8_u (i32.add (local.get $l3) (i32.const 0x810a)))
          (i32.const 2))
      (then
        (i64.store (i32.const 0x9000)
          (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
        ;; drop, with reason 7
        (return (i32.const 0x70001))))
    (i32.const 0))

  (@custom "tamandua"
    "abi = 1\n"
    "name = \"expire\"\n"
    "version = \"0.1.0\"\n"
    "window = 64\n"
    "[reasons]\n"
    "7 = \"about to expire\"\n"))
