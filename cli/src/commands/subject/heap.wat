;; Module with a heap of its own: 16,384 objects of one size, made by packets of A (an even source
;; port) and of B (an odd one), marked from the last 256 of each and swept, a part with each packet.
;;
;;   free list ─ alloc ─▶ object ─▶ one of its maker's 256 slots, in turn; the old entry is garbage
;;       ▲                                                              │
;;       └── sweep: every object ◀── mark: every slot ◀── few are free ─┘
;;
;; A packet that comes during a collection does up to 256 steps of it; one that finds no free object
;; finishes it. Each step visits one object or slot, and is counted for the packet's party.
(module
  (@custom "tamandua" "abi = 1\nname = \"heap\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 3\n")
  (memory (export "memory") 3 3)
  (global (export "tam_counter_packets_a") i32 (i32.const 0x9000))
  (global (export "tam_counter_packets_b") i32 (i32.const 0x9008))
  (global (export "tam_counter_looked_a") i32 (i32.const 0x9010))
  (global (export "tam_counter_looked_b") i32 (i32.const 0x9018))
  ;; Objects that each packet of A makes; those of B make 4.
  (data (i32.const 0x9020) "\04\00\00\00")

  (global $free (mut i32) (i32.const 0))
  (global $count (mut i32) (i32.const 0))
  ;; 0: nothing is collected, 1: places are looked at, 2: objects are.
  (global $phase (mut i32) (i32.const 0))
  (global $cursor (mut i32) (i32.const 0))
  ;; What an object has that was made or marked since the last collection began: 1 or 2; free: 0.
  (global $colour (mut i32) (i32.const 1))

  (func $begin
    (global.set $colour (i32.sub (i32.const 3) (global.get $colour)))
    (global.set $phase (i32.const 1))
    (global.set $cursor (i32.const 0)))

  (func $add (param $at i32)
    (i64.store (local.get $at) (i64.add (i64.load (local.get $at)) (i64.const 1))))

  (func $release (param $object i32)
    (i32.store (local.get $object) (i32.const 0))
    (i32.store offset=4 (local.get $object) (global.get $free))
    (global.set $free (local.get $object))
    (global.set $count (i32.add (global.get $count) (i32.const 1))))

  (func $mark (local $object i32)
    (local.set $object
      (i32.load offset=0xa000 (i32.shl (global.get $cursor) (i32.const 2))))
    (if (local.get $object) (then (i32.store (local.get $object) (global.get $colour))))
    (global.set $cursor (i32.add (global.get $cursor) (i32.const 1)))
    (if (i32.eq (global.get $cursor) (i32.const 512))
      (then
        (global.set $phase (i32.const 2))
        (global.set $cursor (i32.const 0)))))

  (func $sweep (local $object i32) (local $has i32)
    (local.set $object
      (i32.add (i32.const 0x10000) (i32.shl (global.get $cursor) (i32.const 3))))
    (local.set $has (i32.load (local.get $object)))
    (if (i32.and
          (i32.ne (local.get $has) (i32.const 0))
          (i32.ne (local.get $has) (global.get $colour)))
      (then (call $release (local.get $object))))
    (global.set $cursor (i32.add (global.get $cursor) (i32.const 1)))
    (if (i32.eq (global.get $cursor) (i32.const 16384))
      (then (global.set $phase (i32.const 0)))))

  (func $step (param $who i32)
    (call $add (i32.add (i32.const 0x9010) (i32.shl (local.get $who) (i32.const 3))))
    (if (i32.eq (global.get $phase) (i32.const 1))
      (then (call $mark))
      (else (call $sweep))))

  (func $alloc (param $who i32) (local $object i32) (local $turn i32) (local $place i32)
    (block $found
      (loop $more
        (br_if $found (global.get $free))
        (if (i32.eqz (global.get $phase)) (then (call $begin)))
        (call $step (local.get $who))
        (br $more)))
    (local.set $object (global.get $free))
    (global.set $free (i32.load offset=4 (local.get $object)))
    (global.set $count (i32.sub (global.get $count) (i32.const 1)))
    (i32.store (local.get $object) (global.get $colour))
    (local.set $turn (i32.shl (local.get $who) (i32.const 2)))
    (local.set $place (i32.load offset=0x9030 (local.get $turn)))
    (i32.store offset=0xa000
      (i32.or (i32.shl (local.get $who) (i32.const 10)) (i32.shl (local.get $place) (i32.const 2)))
      (local.get $object))
    (i32.store offset=0x9030 (local.get $turn)
      (i32.and (i32.add (local.get $place) (i32.const 1)) (i32.const 255))))

  (func (export "on_start") (result i32) (local $at i32)
    (local.set $at (i32.const 0x30000))
    (loop $more
      (local.set $at (i32.sub (local.get $at) (i32.const 8)))
      (call $release (local.get $at))
      (br_if $more (i32.gt_u (local.get $at) (i32.const 0x10000))))
    (i32.const 0))

  (func (export "on_message") (param $length i32) (result i32)
    (i32.store (i32.const 0x9020) (i32.load (i32.const 0x8102)))
    (i32.const 0))

  (func (export "on_packet") (result i32) (local $who i32) (local $left i32)
    ;; The last bit of the source port, behind the offset of the L4 header.
    (local.set $who
      (i32.and
        (i32.load8_u offset=0x8103 (i32.load16_u (i32.const 0x800a)))
        (i32.const 1)))
    (call $add (i32.add (i32.const 0x9000) (i32.shl (local.get $who) (i32.const 3))))
    (local.set $left (i32.const 256))
    (block $done
      (loop $more
        (br_if $done (i32.eqz (global.get $phase)))
        (br_if $done (i32.eqz (local.get $left)))
        (call $step (local.get $who))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br $more)))
    (local.set $left
      (select (i32.const 4) (i32.load (i32.const 0x9020)) (local.get $who)))
    (block $done
      (loop $more
        (br_if $done (i32.eqz (local.get $left)))
        (call $alloc (local.get $who))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br $more)))
    (if (i32.and
          (i32.eqz (global.get $phase))
          (i32.lt_u (global.get $count) (i32.const 4096)))
      (then (call $begin)))
    (i32.const 0)))
