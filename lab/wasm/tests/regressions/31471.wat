(module
  (type (;0;) (func (param i64 i32) (result i64 i32)))
  (type (;1;) (func (param i32 i32 i64) (result i64 i64)))
  (type (;2;) (func (param i64 i32) (result i32)))
  (type (;3;) (func (param i64 i32 i32 i64)))
  (type (;4;) (func (param i32 i64 i64) (result i32 i32 i32)))
  (type (;5;) (func (result i32 i64)))
  (table (;0;) 12 12 funcref)
  (memory (;0;) 1 4)
  (global (;0;) (mut i32) i32.const -2039336135)
  (global (;1;) (mut i32) i32.const 42796)
  (global (;2;) (mut i64) i64.const 64156)
  (global (;3;) (mut i64) i64.const 29038)
  (export "f0" (func 0))
  (export "f1" (func 1))
  (export "f2" (func 2))
  (export "f3" (func 3))
  (export "f4" (func 4))
  (export "f5" (func 5))
  (export "g0" (global 0))
  (export "g1" (global 1))
  (export "g2" (global 2))
  (export "g3" (global 3))
  (export "memory" (memory 0))
  (elem (;0;) (i32.const 0) func 1 0 2 0)
  (func (;0;) (type 0) (param i64 i32) (result i64 i32)
    (local i32 i32 i32 i64 i32 i64 i32 i32 i32 i32)
    i32.const 0
    local.set 10
    block ;; label = @1
      loop ;; label = @2
        i64.const 32758
        i32.wrap_i64
        i32.const 61439
        i32.and
        local.get 8
        i32.const -1
        i32.and
        i32.const 25
        memory.fill
        local.get 8
        i32.const 3047
        global.get 1
        i32.or
        i32.const 148959906
        i32.const 2
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_u
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_u
        i32.sub
        local.tee 1
        global.get 1
        if (result i32) ;; label = @3
          local.get 4
        else
          local.get 1
        end
        local.get 11
        local.get 2
        local.get 2
        select
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_u
        local.get 9
        local.get 1
        i32.le_u
        i32.const 4092
        i32.and
        i32.load offset=24 align=1
        i32.shl
        local.tee 1
        i32.shr_s
        local.set 4
        memory.size
        i32.const 2
        i32.rem_u
        local.set 9
        block ;; label = @3
          loop ;; label = @4
            local.get 4
            if (result i64) ;; label = @5
              i32.const 50232
              if (result i64) ;; label = @6
                i64.const 3350006748165572
              else
                local.get 0
              end
              global.get 2
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.rem_s
              local.get 7
              global.get 3
              local.get 7
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.rem_s
              i64.add
              i64.shr_s
              i64.const 4294967295
              i64.const 3657694360782326992
              i64.rotr
              i64.const 1754
              i64.const 62912
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.rem_s
              i64.shr_u
              local.get 5
              i32.wrap_i64
              if (result i64) ;; label = @6
                local.get 2
                i32.const 4092
                i32.and
                i64.load32_u offset=59 align=1
              else
                global.get 3
                i64.const 2951
                local.get 2
                select
              end
              i64.rotl
              local.get 10
              select
            else
              local.get 10
              if (result i64) ;; label = @6
                i64.const 23620
              else
                local.get 7
                local.get 5
                i64.div_s
                i64.extend16_s
              end
              i64.extend32_s
            end
            global.set 2
            i32.const 302290593
            i32.const 113645034
            i32.sub
            i32.const 4092
            i32.and
            local.get 8
            i32.const 1254269696
            i32.const -1
            i32.sub
            global.get 0
            local.tee 1
            select
            if (result i64) ;; label = @5
              local.get 10
              if (result i32) ;; label = @6
                i32.const -1191650077
              else
                i32.const 31049
              end
              i64.extend_i32_s
            else
              local.get 0
              local.get 5
              i64.rotl
              local.get 5
              global.get 3
              i64.sub
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.div_u
            end
            local.tee 0
            i64.store16 offset=884 align=1
            local.get 9
            i32.const 1
            i32.add
            local.tee 9
            i32.const 2
            i32.lt_u
            br_if 0 (;@4;)
          end
        end
        local.get 10
        local.get 4
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_s
        local.get 6
        global.get 0
        i32.shl
        i32.add
        br_if 1 (;@1;)
        local.get 10
        i32.const 1
        i32.add
        local.tee 10
        i32.const 3
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 0
    local.get 5
    i64.add
    local.get 7
    local.get 1
    select
    local.get 5
    i64.const 25091
    i64.rotr
    i64.add
    global.get 3
    i64.or
    local.tee 0
    global.set 3
    global.get 2
    local.get 10
    local.get 9
    i32.const 61439
    i32.and
    i32.load16_s offset=10666 align=1
    i32.sub
    i64.extend_i32_s
    i64.extend8_s
    local.get 8
    local.get 4
    i32.mul
    if (result i64) ;; label = @1
      i32.const 52928
      i64.load16_u offset=610 align=1
    else
      i64.const 56836
      local.get 0
      i64.mul
    end
    i32.wrap_i64
    global.get 2
    i64.extend32_s
    i32.wrap_i64
    memory.size
    local.get 6
    i32.sub
    i32.const 1199242880
    local.tee 1
    select
    i32.mul
    select
    i32.const 36137
    if (result i32) ;; label = @1
      global.get 2
      i64.const 62568112842847
      local.get 8
      local.get 11
      i32.const -103949900
      select
      local.get 1
      local.tee 1
      i32.sub
      select
      i32.wrap_i64
    else
      global.get 3
      i64.clz
      i32.wrap_i64
      local.get 6
      local.get 9
      i32.xor
      i32.shr_u
      if (result i32) ;; label = @2
        i32.const 0
        local.get 4
        i32.ge_s
        local.tee 1
      else
        local.get 8
      end
    end
  )
  (func (;1;) (type 1) (param i32 i32 i64) (result i64 i64)
    (local i64 i32 i32 i64 i64 i64 i32 i32 i32 i32)
    block (result i64) ;; label = @1
      global.get 3
      local.get 7
      local.get 6
      i64.mul
      i64.mul
      local.get 2
      local.get 3
      local.get 6
      i64.const 32767
      i64.and
      i64.const 1
      i64.or
      i64.rem_s
      local.get 11
      local.get 0
      i32.shr_s
      select
      i64.shr_s
      i32.const 59917
      local.get 5
      i32.const 95608660
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.div_u
      i32.shl
      i32.clz
      br_if 0 (;@1;)
      drop
      i32.const 26370847
      i32.const 4092
      i32.and
      local.get 1
      if (result i64) ;; label = @2
        global.get 3
      else
        local.get 8
      end
      global.get 2
      local.get 3
      i64.or
      i64.const 32767
      i64.and
      i64.const 1
      i64.or
      i64.div_u
      local.get 2
      global.get 2
      i64.rotl
      i32.const 15197
      i64.extend_i32_s
      i64.rotr
      i64.sub
      local.get 7
      i32.wrap_i64
      if (result i64) ;; label = @2
        i32.const -1
        if (result i64) ;; label = @3
          global.get 2
        else
          i64.const 38957
        end
      else
        local.get 6
        i64.const -9085334821688169244
        i64.shl
      end
      global.get 1
      i64.extend_i32_u
      local.get 7
      local.get 3
      local.get 1
      select
      i64.rotr
      local.get 0
      if (result i32) ;; label = @2
        local.get 9
        local.get 4
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_s
      else
        i32.const 13236
        i32.load16_u offset=3133 align=1
      end
      select
      i64.sub
      i64.store16 offset=7174 align=1
      i64.const 39489
    end
    local.set 8
    i32.const 53067
    i64.load16_s offset=36 align=1
    local.set 2
    i32.const 12381
    local.get 3
    i64.store32 offset=447 align=1
    block ;; label = @1
      block ;; label = @2
        block ;; label = @3
          block ;; label = @4
            block ;; label = @5
              local.get 5
              i32.const 7
              i32.and
              br_table 2 (;@3;) 4 (;@1;) 4 (;@1;) 4 (;@1;) 1 (;@4;)
            end
            local.get 6
            i32.const 2
            if (result i64) ;; label = @5
              local.get 7
              local.get 7
              i64.rem_u
              i64.const -9223372036854775808
              i64.ctz
              i64.xor
              local.get 3
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.div_u
            else
              local.get 5
              i32.const 61439
              i32.and
              i64.load8_s offset=60
              i64.const -6971321173199054025
              i64.extend32_s
              local.get 6
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.rem_s
              local.get 9
              if (result i64) ;; label = @6
                i64.const 2147483647
              else
                local.get 2
              end
              i32.wrap_i64
              select
            end
            i64.rotr
            local.set 3
          end
          global.get 1
          if (result i32) ;; label = @4
            local.get 11
          else
            i32.const 1066913180
          end
          i32.const -1005727495
          local.get 4
          i32.rotl
          i32.sub
          i32.const 61439
          i32.and
          i32.load offset=57 align=1
          if (result i32) ;; label = @4
            memory.size
            local.tee 0
          else
            local.get 1
          end
          if ;; label = @4
          else
          end
        end
        br 1 (;@1;)
      end
    end
    local.get 6
    i64.const 30107
    i64.ne
    global.get 0
    i32.const 61439
    i32.and
    i32.load16_s offset=63 align=1
    i32.or
    local.get 10
    local.get 9
    i32.shr_s
    i64.const 28463716
    i32.wrap_i64
    local.get 2
    global.get 3
    i64.shr_u
    global.get 2
    local.get 6
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_u
    i64.add
    local.get 2
    i32.wrap_i64
    call 0
    drop
    drop
    local.get 1
    local.get 12
    local.get 1
    i32.shr_s
    i32.rotr
    i32.const 61439
    i32.and
    i32.load offset=4 align=1
    select
    i32.add
    i64.extend_i32_u
    global.get 2
    local.get 9
    local.get 4
    i32.shr_s
    if (result i64) ;; label = @1
      i64.const 40869
      local.get 3
      i64.mul
    else
      i64.const 66701617
      i64.const 7403
      i64.rem_u
      local.get 6
      global.get 3
      i64.shr_s
      i64.lt_s
      i32.const 61439
      i32.and
      i32.load16_u offset=1473 align=1
      i32.const 4092
      i32.and
      i64.load8_u offset=56
    end
    i64.rotr
    global.get 2
    i64.extend32_s
    local.tee 2
    local.get 7
    local.get 11
    select
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.div_s
    i64.add
    i32.const 670569523
    local.get 4
    i32.shl
    if (result i32) ;; label = @1
      local.get 11
      if (result i32) ;; label = @2
        global.get 1
      else
        global.get 1
      end
    else
      local.get 12
      local.get 10
      i32.le_s
    end
    local.get 9
    local.get 4
    local.get 12
    select
    local.get 0
    local.tee 0
    i32.shl
    i32.rem_s
    i32.popcnt
    if (result i64) ;; label = @1
      i32.const 37862
      i64.load16_u offset=865 align=1
    else
      local.get 3
    end
  )
  (func (;2;) (type 2) (param i64 i32) (result i32)
    (local i32 i32 i32 i32 i32)
    global.get 1
    if (result i32) ;; label = @1
      global.get 0
    else
      i32.const 6337
    end
    i32.const 2
    local.get 4
    i32.shl
    i32.xor
    i32.const 61439
    i32.and
    i32.load offset=16 align=1
    global.get 1
    local.tee 1
    if (result i32) ;; label = @1
      i32.const 64473
    else
      i64.const 13633
      i32.wrap_i64
    end
    global.get 0
    if (result i64) ;; label = @1
      local.get 0
    else
      i64.const 4294967295
    end
    global.get 3
    i64.popcnt
    i64.add
    call 1
    local.set 0
    local.set 0
    local.get 3
    i32.const 3953952
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_s
    i32.const 50464
    i32.xor
    i32.const 61439
    i32.and
    i64.load8_s offset=47
    global.get 2
    global.get 3
    i64.const 8276183150430643468
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_s
    global.get 1
    select
    i64.const 7319674015114330460
    local.get 2
    global.get 0
    i32.or
    i32.const 2147483647
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_u
    select
    local.get 0
    i64.rotr
    global.get 1
    local.get 3
    local.get 5
    i32.sub
    local.get 2
    local.get 4
    i32.xor
    i32.rotr
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_s
    if (result i32) ;; label = @1
      i32.const 38864
      local.get 5
      local.get 1
      local.get 1
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.div_u
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_u
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_s
    else
      i32.const -2147483648
      i32.clz
      if (result i64) ;; label = @2
        global.get 2
        i64.const -7866665508739364824
        i64.xor
      else
        global.get 3
        global.get 3
        local.get 2
        select
      end
      i32.const 38671
      i32.load8_u offset=35
      call 0
      drop
      drop
      i32.const 25429
      local.get 5
      global.get 1
      i32.shl
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_s
      local.get 5
      i32.const -370885015
      i32.or
      local.get 2
      i32.const 22983
      i32.and
      global.get 1
      local.get 5
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_s
      select
      i32.shr_u
    end
    select
    global.set 2
    global.get 2
    i32.wrap_i64
    local.get 6
    i32.extend8_s
    i32.and
    i32.const 61439
    i32.and
    i32.load offset=7 align=1
    i32.const 5487
    i32.mul
  )
  (func (;3;) (type 3) (param i64 i32 i32 i64)
    (local i32 i64 i32 i32 i32 i32 i32)
    i64.const 233575252037464817
    local.get 8
    call 2
    local.set 1
    i32.const 0
    local.set 9
    block ;; label = @1
      loop ;; label = @2
        memory.size
        if (result i64) ;; label = @3
          i64.const 4294967295
          local.tee 0
          local.get 0
          local.get 3
          i64.shl
          local.tee 0
          i64.const 32767
          i64.and
          i64.const 1
          i64.or
          i64.rem_u
        else
          local.get 3
        end
        i64.const 4294967295
        i64.gt_s
        local.set 6
        i64.const 23032
        global.set 2
        local.get 2
        local.get 9
        local.get 1
        select
        local.get 1
        local.get 6
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_s
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_u
        local.tee 1
        if ;; label = @3
          i32.const 33236
          local.set 6
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    block ;; label = @9
                      local.get 4
                      i32.extend8_s
                      local.tee 1
                      i32.const 7
                      i32.and
                      br_table 3 (;@6;) 4 (;@5;) 1 (;@8;) 2 (;@7;) 5 (;@4;) 3 (;@6;)
                    end
                  end
                end
                br 2 (;@4;)
              end
              br 1 (;@4;)
            end
            br 0 (;@4;)
          end
        end
        local.get 9
        i32.const 1
        i32.add
        local.tee 9
        i32.const 5
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
  )
  (func (;4;) (type 4) (param i32 i64 i64) (result i32 i32 i32)
    (local i64 i64 i32 i32 i32 i32)
    memory.size
    local.get 5
    if (result i32) ;; label = @1
      i32.const 0
    else
      local.get 6
    end
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    global.get 0
    if (result i32) ;; label = @1
      local.get 0
    else
      local.get 6
    end
    global.get 1
    local.get 5
    i32.rem_s
    i32.sub
    i32.gt_s
    if ;; label = @1
      global.get 0
      if ;; label = @2
        local.get 5
        i32.const 2
        i32.rem_u
        local.set 5
        block ;; label = @3
          loop ;; label = @4
            i32.const 46958
            i64.const -4867807130483156654
            i32.wrap_i64
            i32.const 61439
            i32.and
            i64.load8_u offset=2035
            i32.wrap_i64
            i32.store8 offset=933
            local.get 5
            i32.const 1
            i32.add
            local.tee 5
            i32.const 2
            i32.lt_u
            br_if 0 (;@4;)
          end
        end
        local.get 4
        i64.const -5509866139514034392
        local.get 3
        i64.and
        i64.gt_u
        i32.const 61439
        i32.and
        i32.load align=1
        i32.const -2147483648
        local.get 5
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_u
        i32.const 4092
        i32.and
        i32.load offset=8 align=1
        i32.const 203856432
        i32.and
        local.get 1
        local.get 4
        i64.shr_u
        i32.const -1
        i32.const -1
        i32.const 3
        select
        global.get 1
        global.get 1
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_u
        i32.rotl
        local.get 7
        local.get 7
        i32.const 419645098
        i32.eqz
        select
        i32.const 61439
        i32.and
        i32.load8_s offset=194
        local.get 0
        if (result i32) ;; label = @3
          i32.const -108458398
        else
          i32.const 48637
        end
        i64.extend_i32_s
        call 1
        drop
        drop
        local.get 4
        i64.sub
        i32.const 5
        call_indirect (type 1)
        drop
        local.set 1
      end
    else
      block (result i32) ;; label = @2
        local.get 5
        local.get 6
        if (result i32) ;; label = @3
          local.get 7
        else
          local.get 8
        end
        i32.sub
        i32.eqz
        local.get 5
        i32.const -1
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_u
        local.get 6
        i32.const -1
        local.get 6
        select
        i32.lt_s
        local.get 0
        i64.extend_i32_s
        i32.wrap_i64
        i32.const 61439
        i32.and
        i32.load16_u offset=24 align=1
        i32.ctz
        i32.const -1981037066
        local.get 8
        local.get 6
        i32.rotl
        i32.shr_u
        select
        br_if 0 (;@2;)
        drop
        block (result i64) ;; label = @3
          i32.const 28778
          if (result i64) ;; label = @4
            local.get 2
          else
            global.get 3
          end
          i32.const 2
          i64.extend_i32_u
          i64.shl
          i64.popcnt
          local.get 8
          if (result i32) ;; label = @4
            global.get 1
          else
            local.get 5
          end
          i32.const 264138
          local.tee 0
          i32.shr_u
          local.get 1
          i64.extend16_s
          i32.wrap_i64
          i32.lt_s
          br_if 0 (;@3;)
          drop
          local.get 2
          i64.extend16_s
        end
        local.set 2
        local.get 8
        i32.const -1197500354
        local.get 6
        i32.shr_u
        local.get 5
        local.get 8
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.div_s
        i32.const 32767
        i32.and
        i32.const 1
        i32.or
        i32.rem_s
        local.get 8
        i32.popcnt
        local.get 8
        local.tee 0
        i32.const 0
        local.get 0
        i32.add
        select
        select
      end
      local.set 0
    end
    local.get 8
    local.get 0
    local.get 8
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_s
    if (result i32) ;; label = @1
      local.get 7
    else
      i32.const 60920
    end
    i32.const 61439
    i32.and
    i32.load offset=1370 align=1
    global.get 0
    global.get 0
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_u
    i32.const 2
    if (result i32) ;; label = @1
      global.get 0
    else
      i32.const 11794
      local.get 6
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.div_u
    end
    global.get 2
    global.get 2
    i32.const 1823781591
    select
    i32.wrap_i64
    select
    i32.rotr
    global.get 0
    select
    local.get 8
    local.get 2
    i64.extend8_s
    local.get 3
    i64.clz
    i64.gt_s
    global.get 0
    i32.add
    i64.const 23125
    local.get 7
    if (result i64) ;; label = @1
      i64.const 2147483648
    else
      i64.const 1
    end
    i64.shr_u
    i32.wrap_i64
    i32.shr_u
    i32.const 1189100272
    local.get 5
    i32.popcnt
    if (result i32) ;; label = @1
      local.get 6
      i32.const 1152
      local.get 8
      select
    else
      i32.const -1
      local.get 7
      i32.and
    end
    i32.add
    local.get 7
    local.tee 0
    i32.shr_u
    i32.rotl
  )
  (func (;5;) (type 5) (result i32 i64)
    (local i32 i32 i32 i32 i32)
    local.get 0
    i32.eqz
    i32.const 61439
    i32.and
    i64.const 1
    i32.wrap_i64
    i32.const 61439
    i32.and
    local.get 1
    i32.const -1116077046
    local.get 2
    select
    i32.const 4095
    i32.and
    memory.copy
    global.get 1
    local.get 3
    i32.le_s
    i32.eqz
    local.set 0
    block (result i32) ;; label = @1
      local.get 4
      i64.const -2122207654500550181
      global.get 3
      i64.const 32767
      i64.and
      i64.const 1
      i64.or
      i64.rem_u
      i32.const 199038928
      if (result i32) ;; label = @2
        i32.const 5140
        i32.const 2
        i32.rotl
      else
        local.get 3
        i32.const 44
        local.get 4
        select
      end
      i32.const 61439
      i32.and
      i64.load16_u offset=25 align=1
      global.get 2
      i32.wrap_i64
      select
      global.get 2
      i32.wrap_i64
      local.get 4
      i32.shl
      global.get 0
      local.get 2
      i32.lt_s
      global.get 3
      i32.wrap_i64
      i32.rotr
      i64.const 51851
      i64.const 7930
      local.get 4
      select
      i64.const 189
      global.get 3
      global.get 1
      select
      i64.sub
      call 3
      global.get 0
      i32.const 0
      i32.shr_u
      i32.shr_u
      local.get 3
      br_if 0 (;@1;)
      drop
      i32.const 1898007793
      i32.const -1059654581
      i32.sub
      i32.const 61439
      i32.and
      local.get 0
      global.get 1
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_s
      i32.const 61439
      i32.and
      local.get 1
      i32.const 16383
      i32.and
      memory.copy
      global.get 3
      i64.popcnt
      global.get 3
      i64.shr_s
      i32.wrap_i64
    end
    local.set 0
    i32.const 0
    local.set 3
    block ;; label = @1
      loop ;; label = @2
        local.get 2
        i32.popcnt
        i32.const 61439
        i32.and
        global.get 3
        i64.const -5021277564995057840
        i64.const 32767
        i64.and
        i64.const 1
        i64.or
        i64.div_s
        global.get 3
        local.get 4
        local.get 4
        i32.xor
        select
        global.get 2
        local.get 0
        i64.extend_i32_s
        i64.mul
        i64.or
        i32.const 55461
        i64.load16_s offset=59 align=1
        i64.rotr
        i64.store offset=65029 align=1
        block ;; label = @3
          block ;; label = @4
            i64.const 31681
            global.get 2
            i64.rotr
            local.get 2
            if (result i64) ;; label = @5
              i64.const 2909622174
            else
              global.get 3
            end
            i64.ge_u
            i32.const 7
            i32.and
            br_table 0 (;@4;) 1 (;@3;)
          end
        end
        local.get 3
        i32.const 1
        i32.add
        local.tee 3
        i32.const 1
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 2
    i64.const 4294967295
  )
  (data (;0;) (i32.const 44646) "\0a@\b0\05\b2Z\0d~!\a7]\5cE\00\bah\9e\b5\bb(V\df`\f2\b9\09\19\bf\02\b0\c7\b1")
  (data (;1;) (i32.const 61356) "\aan\c7\224\ea\d1\14v\cc#\ca\fb\ed\e5)\e8\da\10&\99\87dV\22\94\91\1c\8e>\81\89\ea\f3\f5A\99\ef\09\d5\17\5c\ef\dd\d3\bbl\b0\fc\16z\b4\99\cci\0e\d7\c5\86B$w:l\8c3m\83H\93v\c4\c6\85j\f21\da\82~\b4\d9/\07\08v\ab\a3\f0L\18\e18\d9\80\cc\08\00\dc\b5U\8eM\f7E\8b\8a~\97~.>:zLi\82\9d\17G\86\9b\d5=u\a2\d3Aj\f84,8\e7\b6\fd6v\93x\1d\16\e9\c7\eeLV#\ac\00\b6E*\16\a0\d5\a6]H\bf-\bc\94\a6\a7\e6\9fD\8c\df\0bU\ba\da\fd\91\8e\b2\d5\e4\b5\9c\91W\8b\00\ca\9b2\95\d4V\db\e7\01o\e4\0d\c5V\92\d9\13\daF\a9\11\8c\f2v\9a\8e\dduD!S\f3\9bd\b6\93\7f\ed\1aN\b2\a4@\c97\84\b5\80?\87}>$\a2\98\ea\f3\9cj\ed\c5Y)+fC]0\a3\aa [\1a/\9f\e8\8b\ef\e8\b9N\e5\eb\e2\be\9e\de;4ms7*<\9d\d4\1fTa\fe")
)

