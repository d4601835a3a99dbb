;; A module that uses every part of the packet ABI, version 1. Written by hand
;; for base/abi's tests; docs/reference/module-abi.md explains each part.
(module
  (import "tam" "packet_load" (func $packet_load (param i32 i32 i32) (result i32)))
  (import "tam" "packet_store" (func $packet_store (param i32 i32 i32) (result i32)))
  (import "tam" "packet_resize_head" (func $packet_resize_head (param i32) (result i32)))
  (import "tam" "packet_resize_tail" (func $packet_resize_tail (param i32) (result i32)))
  (import "tam" "packet_send" (func $packet_send (param i32 i32 i32) (result i32)))
  (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
  (import "tam" "param_load" (func $param_load (param i32 i32 i32 i32) (result i32)))
  (import "tam" "port_find" (func $port_find (param i32 i32) (result i32)))
  (import "tam" "now_ms" (func $now_ms (result i64)))
  (import "tam" "message_send" (func (param i32 i32) (result i32)))
  (import "tam" "state_write" (func (param i32 i32) (result i32)))
  (import "tam" "state_read" (func (param i32 i32) (result i32)))
  (import "tam" "queue_watch" (func (param i32 i32) (result i32)))

  (memory (export "memory") 1 4)
  (data (i32.const 0x9000) "\00\00\00\00\00\00\00\00dscp")
  (global (export "tam_counter_packets") i32 (i32.const 0x9000))

  (func (export "on_start") (result i32)
    (drop (call $param_load (i32.const 0x9008) (i32.const 4) (i32.const 0x9010) (i32.const 1)))
    (i32.const 0))
  (func (export "on_packet") (result i32)
    (i64.store (i32.const 0x9000)
      (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
    (i32.const 0))
  (func (export "on_timer"))
  (func (export "on_message") (param i32) (result i32) (i32.const 0))
  (func (export "on_memory_low") (param i32 i32))
  (func (export "on_queue") (param i32 i32))
  (func (export "state_out") (result i32) (i32.const 0))
  (func (export "state_in") (param i32) (result i32) (i32.const 0))

  (@custom "tamandua"
    "abi = 1\n"
    "name = \"good\"\n"
    "version = \"1.2.3-rc.1\"\n"
    "window = 96\n"
    "state_version = 2\n"
    "lanes = 4\n"
    "levels = [\"nic\", \"user\"]\n"
    "memory_pages_max = 8\n"
    "timer_ms = 1000\n"
    "needs = [\"send\", \"events\", \"messages\", \"queues\"]\n"
    "description = \"uses every part of the ABI\"\n")
  (@custom "tamandua"
    "[parameters.dscp]\n"
    "type = \"u8\"\n"
    "default = 46\n"
    "description = \"what packets are marked with\"\n"
    "[reasons]\n"
    "7 = \"too short\"\n"))
