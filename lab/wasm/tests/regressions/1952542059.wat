(module
  (type (;0;) (func (param i64 i32 i64 i32) (result i64 i32 i64)))
  (type (;1;) (func (param i64) (result i64)))
  (type (;2;) (func (param i64 i64 i32 i32) (result i32 i64 i32)))
  (table (;0;) 12 12 funcref)
  (memory (;0;) 1 4)
  (global (;0;) (mut i32) i32.const -234922898)
  (global (;1;) (mut i32) i32.const -1517106528)
  (global (;2;) (mut i64) i64.const 8114618813155936554)
  (global (;3;) (mut i64) i64.const 2)
  (export "f0" (func 0))
  (export "f1" (func 1))
  (export "f2" (func 2))
  (export "g0" (global 0))
  (export "g1" (global 1))
  (export "g2" (global 2))
  (export "g3" (global 3))
  (export "memory" (memory 0))
  (elem (;0;) (i32.const 0) func 0)
  (func (;0;) (type 0) (param i64 i32 i64 i32) (result i64 i32 i64)
    (local i64 i64 i64 i32 i32 i64 i32 i32 i64 i32 i64 i32 i32 i64 i32 i64 i32 i64 i64 i32 i32 i32 i32)
    block ;; label = @1
      block ;; label = @2
        block ;; label = @3
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                local.get 8
                br_table 0 (;@6;) 3 (;@3;) 4 (;@2;) 4 (;@2;) 0 (;@6;) 1 (;@5;)
              end
              local.get 5
              i32.wrap_i64
              i32.const 3
              i32.rem_u
              local.set 24
              block ;; label = @6
                loop ;; label = @7
                  local.get 22
                  i32.wrap_i64
                  local.get 15
                  i32.const 2
                  i32.lt_s
                  i32.sub
                  local.get 24
                  i32.clz
                  i32.lt_s
                  local.get 23
                  memory.size
                  i32.const 32767
                  i32.and
                  i32.const 1
                  i32.or
                  i32.div_s
                  i64.const 32862
                  local.get 9
                  i64.gt_u
                  global.get 2
                  local.get 17
                  i64.const 32767
                  i64.and
                  i64.const 1
                  i64.or
                  i64.div_s
                  i64.const 512038692
                  i64.ge_u
                  i32.const 61439
                  i32.and
                  i32.load8_u offset=2166
                  i32.mul
                  i32.shr_s
                  local.get 4
                  i64.const -4962467662364229103
                  i64.lt_u
                  i32.const 4092
                  i32.and
                  i32.load8_u offset=3833
                  global.get 3
                  i32.wrap_i64
                  i32.rotr
                  local.get 16
                  i32.mul
                  select
                  local.get 24
                  local.get 25
                  local.get 15
                  select
                  local.get 16
                  i32.rotl
                  global.get 1
                  local.get 3
                  local.get 15
                  select
                  i32.const 32767
                  i32.and
                  i32.const 1
                  i32.or
                  i32.div_s
                  i32.const 0
                  local.get 3
                  i32.mul
                  i64.const 556096306694749848
                  i32.wrap_i64
                  local.get 3
                  local.get 18
                  i32.shl
                  select
                  local.tee 1
                  i32.rotl
                  i32.eq
                  local.set 11
                  i32.const 0
                  local.set 23
                  block ;; label = @8
                    loop ;; label = @9
                      i64.const 44941
                      global.set 2
                      i32.const 25732
                      i32.load8_s offset=19
                      i32.const 7719
                      i32.load offset=19 align=1
                      i32.const 163
                      if (result i32) ;; label = @10
                        local.get 3
                      else
                        local.get 13
                      end
                      select
                      br_if 1 (;@8;)
                      local.get 23
                      i32.const 1
                      i32.add
                      local.tee 23
                      i32.const 1
                      i32.lt_u
                      br_if 0 (;@9;)
                    end
                  end
                  local.get 9
                  i64.extend16_s
                  local.tee 0
                  local.set 22
                  local.get 24
                  i32.const 1
                  i32.add
                  local.tee 24
                  i32.const 3
                  i32.lt_u
                  br_if 0 (;@7;)
                end
              end
            end
            local.get 12
            local.get 21
            i64.const 32767
            i64.and
            i64.const 1
            i64.or
            i64.div_s
            i32.wrap_i64
            local.get 10
            local.get 15
            i32.and
            local.get 12
            i32.wrap_i64
            i32.and
            i32.shl
            local.get 11
            local.get 23
            i32.shl
            i64.const 2147483648
            i32.wrap_i64
            i64.const 18836
            i32.wrap_i64
            select
            i32.const 1337752846
            local.get 10
            i32.popcnt
            i32.sub
            i32.shr_u
            i32.le_s
            local.get 18
            local.get 20
            i32.rotr
            local.get 3
            local.get 23
            i32.or
            local.get 10
            i32.const 0
            i32.shr_s
            select
            if (result i32) ;; label = @5
              local.get 13
              local.get 3
              i32.rotl
              local.tee 1
            else
              local.get 20
              i32.extend16_s
              if (result i32) ;; label = @6
                local.get 7
                local.get 20
                i32.ge_s
              else
                i32.const 386175105
                if (result i32) ;; label = @7
                  local.get 20
                else
                  i32.const 191183290
                end
              end
            end
            local.get 19
            i32.wrap_i64
            i32.add
            i32.shr_u
            global.set 0
          end
          i64.const 32628
          i64.popcnt
          global.set 3
        end
        i32.const 0
        local.set 24
        block ;; label = @3
          loop ;; label = @4
            i32.const 55022
            if (result i64) ;; label = @5
              i64.const -6080252285396974185
            else
              i64.const 4294967296
            end
            local.get 18
            i64.extend_i32_u
            i64.or
            local.get 26
            i32.const 37677313
            i32.shr_u
            if (result i64) ;; label = @5
              local.get 19
              i64.const 3370066012
              i64.and
            else
              local.get 12
              local.get 9
              i64.and
            end
            global.get 1
            select
            i64.const 41173
            local.get 6
            i64.const 9
            i32.wrap_i64
            select
            i64.shl
            local.tee 0
            global.set 2
            i64.const 2147483648
            local.set 19
            local.get 24
            i32.const 1
            i32.add
            local.tee 24
            i32.const 4
            i32.lt_u
            br_if 0 (;@4;)
          end
        end
        br 1 (;@1;)
      end
      block (result i64) ;; label = @2
        local.get 0
        local.get 13
        i32.clz
        br_if 0 (;@2;)
        drop
        i64.const 2382915839797469128
        i64.const 18596
        i64.or
        local.get 12
        i64.const 32767
        i64.and
        i64.const 1
        i64.or
        i64.rem_u
        i32.wrap_i64
        if ;; label = @3
          local.get 26
          local.get 24
          i32.const 32767
          i32.and
          i32.const 1
          i32.or
          i32.div_u
          i32.const 4092
          i32.and
          i32.const 0
          if (result i64) ;; label = @4
            local.get 9
          else
            global.get 3
          end
          i32.wrap_i64
          i32.eqz
          if (result i64) ;; label = @4
            i64.const 4294967295
          else
            i32.const -1
            i64.extend_i32_u
            i32.const -2043367518
            local.get 16
            i32.shr_u
            local.tee 1
            i32.const 61439
            i32.and
            i64.load32_u offset=44 align=1
            i64.or
            global.get 3
            i64.or
          end
          i64.store offset=18 align=1
          local.get 13
          local.get 8
          local.get 16
          global.get 1
          i32.const 0
          select
          i32.const 4092
          i32.and
          i32.load align=1
          local.get 26
          i32.const -2147483648
          i32.const 32767
          i32.and
          i32.const 1
          i32.or
          i32.rem_s
          i32.le_s
          i32.and
          i32.popcnt
          i32.xor
          global.set 1
        end
        local.get 7
        if (result i64) ;; label = @3
          global.get 2
          local.get 0
          i64.shr_s
        else
          local.get 20
          if (result i32) ;; label = @4
            local.get 16
          else
            i32.const -1565177812
          end
          i32.const 4092
          i32.and
          i64.load16_u offset=7 align=1
        end
        local.get 17
        local.get 14
        i64.const 32767
        i64.and
        i64.const 1
        i64.or
        i64.rem_u
        i32.const 56319
        global.get 0
        local.tee 1
        i32.xor
        select
      end
      local.set 4
      br 0 (;@1;)
    end
    local.get 9
    local.set 21
    i32.const 32736
    i32.load16_u offset=42 align=1
    i32.extend8_s
    i32.const 61439
    i32.and
    i64.const 15
    local.tee 0
    i64.const 18202985199
    i32.const 15018
    local.get 3
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_u
    i64.extend_i32_s
    i64.and
    i64.sub
    i64.store16 offset=15 align=1
    local.get 8
    global.get 1
    i32.ge_s
    i32.const 4
    i32.rem_u
    local.set 25
    block ;; label = @1
      loop ;; label = @2
        local.get 17
        local.set 4
        local.get 25
        i32.const 1
        i32.add
        local.tee 25
        i32.const 4
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    i32.const 63576
    i64.load offset=3 align=1
    i64.popcnt
    local.set 21
    local.get 21
    local.get 23
    i32.clz
    local.get 8
    memory.size
    select
    local.get 1
    if (result i32) ;; label = @1
      local.get 23
    else
      local.get 24
      local.get 17
      global.get 2
      i64.lt_s
      i32.xor
    end
    if (result i64) ;; label = @1
      local.get 19
      local.get 0
      local.get 25
      local.get 25
      i32.add
      select
      i64.const 33471
      i64.shr_s
    else
      local.get 20
      local.get 25
      i32.ge_u
      i32.const 4092
      i32.and
      i64.load32_s offset=1770 align=1
    end
    local.get 7
    local.get 25
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_s
    i32.extend16_s
    i32.const 61439
    i32.and
    i64.load32_u offset=45 align=1
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_s
  )
  (func (;1;) (type 1) (param i64) (result i64)
    (local i64 i32 i32 i32 i32)
    local.get 5
    i32.const 26569
    local.get 2
    select
    i32.const 6
    i32.rem_u
    local.set 4
    block ;; label = @1
      loop ;; label = @2
        i32.const 2009539852
        global.set 1
        i32.const 9337
        global.get 0
        local.get 5
        select
        local.get 5
        i32.const 2719
        i32.or
        i32.shr_u
        global.get 1
        i32.const 178618
        i32.mul
        local.get 3
        i32.shl
        i32.ne
        if ;; label = @3
          global.get 2
          i64.const 4900510636781888069
          i64.xor
          local.get 0
          i64.shr_u
          local.get 5
          global.get 2
          local.tee 0
          global.get 1
          i32.const 61439
          i32.and
          i32.load8_u offset=2
          call 0
          drop
          drop
          drop
          global.get 3
          local.get 0
          i64.const 2147483648
          local.get 5
          select
          i64.shr_u
          i32.const -1
          local.get 2
          local.get 4
          i32.rotl
          i32.mul
          i64.const 24997
          global.get 1
          i32.const 6
          call_indirect (type 0)
          drop
          drop
          local.set 0
        end
        local.get 4
        i32.const 1
        i32.add
        local.tee 4
        i32.const 6
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    i32.const 58729
    i64.load16_s offset=42 align=1
    i32.const 56106
    local.get 3
    if (result i64) ;; label = @1
      local.get 1
    else
      global.get 3
    end
    global.get 3
    global.get 2
    i64.and
    i64.rotl
    local.get 3
    local.get 2
    i32.mul
    i32.const -337322110
    i32.add
    call 0
    drop
    drop
    drop
    local.get 5
    i64.extend_i32_s
    i64.const 31535
    i64.const 10265
    i64.add
    global.get 1
    local.get 4
    i32.rotr
    select
    i32.const -553444814
    local.get 0
    local.get 0
    i32.const 0
    select
    i64.extend8_s
    local.get 5
    i32.const -727663281
    global.get 1
    i32.lt_u
    i32.shr_u
    i32.const 27925
    i32.const 7
    i32.and
    call_indirect (type 0)
    local.set 0
    drop
    local.set 1
    global.get 0
    i64.extend_i32_u
    local.set 0
    local.get 2
    i32.eqz
    i32.const 61439
    i32.and
    global.get 1
    local.get 5
    i32.const 1
    select
    i32.const 61439
    i32.and
    global.get 1
    local.get 4
    i32.add
    i32.const 16383
    i32.and
    memory.copy
    global.get 3
    i64.const 53007229148520
    i64.ctz
    local.get 2
    local.get 2
    i32.le_u
    local.get 5
    global.get 1
    i32.rotl
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_s
    i32.const 61439
    i32.and
    i32.load offset=42 align=1
    select
  )
  (func (;2;) (type 2) (param i64 i64 i32 i32) (result i32 i64 i32)
    (local i32 i64 i64 i32 i32 i32 i32)
    i32.const 52575
    i32.load offset=1588 align=1
    i32.const 61439
    i32.and
    i32.load16_s offset=27 align=1
    i32.const 5
    i32.rem_u
    local.set 9
    block ;; label = @1
      loop ;; label = @2
        local.get 10
        local.get 7
        local.get 7
        select
        local.get 3
        local.get 9
        i32.sub
        i32.lt_u
        local.get 1
        i32.wrap_i64
        global.get 1
        i32.ge_s
        i32.sub
        if ;; label = @3
          global.get 0
          local.get 10
          i32.sub
          local.get 4
          local.get 9
          local.get 7
          select
          i32.const 32767
          i32.and
          i32.const 1
          i32.or
          i32.div_u
          i32.const 61439
          i32.and
          i64.const 1189652310536693
          global.get 2
          i64.sub
          i32.const 1819
          if (result i64) ;; label = @4
            local.get 0
          else
            local.get 5
          end
          i32.const 283597619
          global.get 0
          i32.mul
          select
          local.get 6
          i64.ne
          i32.const 18331
          i32.load16_s offset=3251 align=1
          i32.const 43623
          i32.load16_s offset=39 align=1
          local.get 7
          global.get 1
          i32.rotl
          i32.sub
          i32.and
          i32.shr_u
          i32.store16 offset=57 align=1
          local.get 6
          global.get 2
          i64.xor
          i64.extend16_s
          local.get 10
          if (result i32) ;; label = @4
            local.get 10
            local.get 3
            i32.xor
          else
            global.get 1
            i32.const 474694839
            i32.rotr
          end
          global.get 1
          i32.const 61439
          i32.and
          i64.load16_u offset=3 align=1
          local.get 10
          i32.const 39282
          i32.load offset=3605 align=1
          i32.const 7
          i32.and
          call_indirect (type 0)
          local.set 0
          drop
          drop
        else
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  global.get 0
                  br_table 2 (;@5;) 3 (;@4;) 3 (;@4;) 3 (;@4;)
                end
                local.get 2
                local.get 10
                i32.const 32767
                i32.and
                i32.const 1
                i32.or
                i32.rem_u
                i64.extend_i32_s
                i64.clz
                global.get 3
                i64.const 4294967295
                i32.const 1581490322
                select
                i64.ctz
                local.get 10
                global.get 1
                i32.rotl
                if (result i64) ;; label = @7
                  local.get 3
                  i32.const 61439
                  i32.and
                  i64.load32_u offset=38 align=1
                else
                  local.get 6
                end
                i64.or
                global.get 0
                i32.const 1561591127
                i32.le_u
                select
                i64.extend8_s
                local.set 6
              end
              global.get 0
              i64.extend_i32_u
              local.tee 0
              global.set 3
            end
            local.get 6
            global.get 3
            global.get 2
            global.get 0
            select
            i64.rotr
            call 1
            drop
            br 0 (;@4;)
          end
          i64.const 25195193697651
          local.set 1
          global.get 1
          local.tee 2
          i32.const 6
          i32.rem_u
          local.set 7
          block ;; label = @4
            loop ;; label = @5
              i32.const 37610
              i64.load16_u offset=766 align=1
              local.set 0
              local.get 1
              i32.wrap_i64
              global.get 0
              global.get 1
              local.get 3
              select
              i32.const 32767
              i32.and
              i32.const 1
              i32.or
              i32.div_u
              br_if 1 (;@4;)
              local.get 7
              i32.const 1
              i32.add
              local.tee 7
              i32.const 6
              i32.lt_u
              br_if 0 (;@5;)
            end
          end
        end
        i32.const 0
        local.set 8
        block ;; label = @3
          loop ;; label = @4
            global.get 3
            i64.clz
            local.set 5
            local.get 8
            if ;; label = @5
              local.get 8
              local.tee 2
              i32.const 61439
              i32.and
              global.get 1
              i32.const 447505741
              i32.sub
              local.get 5
              i32.wrap_i64
              local.get 0
              i32.wrap_i64
              select
              i32.const 61439
              i32.and
              i64.load16_s offset=24 align=1
              i32.wrap_i64
              i32.const 61439
              i32.and
              i32.load16_u offset=6 align=1
              local.get 4
              local.get 2
              i32.rotr
              local.get 7
              i32.extend16_s
              i32.sub
              if (result i32) ;; label = @6
                local.get 0
                i32.wrap_i64
                local.tee 2
              else
                local.get 1
                global.get 2
                local.get 2
                select
                i32.wrap_i64
              end
              i32.rotr
              i32.store16 offset=63 align=1
              i32.const -2147483648
              i32.const 61439
              i32.and
              local.get 6
              i64.store32 offset=2266 align=1
            end
            i32.const 9305
            global.get 3
            i64.store8 offset=1756
            global.get 3
            i64.const -9223372036854775808
            i64.const 32767
            i64.and
            i64.const 1
            i64.or
            i64.div_s
            i32.wrap_i64
            br_if 1 (;@3;)
            local.get 8
            i32.const 1
            i32.add
            local.tee 8
            i32.const 5
            i32.lt_u
            br_if 0 (;@4;)
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
    i32.const 0
    local.set 9
    block ;; label = @1
      loop ;; label = @2
        block ;; label = @3
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    memory.size
                    global.get 1
                    if (result i32) ;; label = @9
                      local.get 2
                    else
                      local.get 2
                    end
                    local.get 3
                    global.get 1
                    i32.eq
                    select
                    br_table 3 (;@5;) 5 (;@3;) 3 (;@5;) 5 (;@3;) 5 (;@3;) 5 (;@3;)
                  end
                  local.get 9
                  i32.const 4092
                  i32.and
                  local.get 1
                  i64.store8 offset=40
                end
                i32.const -1
                i32.const 61439
                i32.and
                local.get 10
                i32.const 61439
                i32.and
                i32.load16_s offset=60 align=1
                i32.store8 offset=11639
              end
              local.get 7
              global.get 1
              i32.shr_s
              i32.const 61439
              i32.and
              local.get 10
              global.get 0
              i32.shr_s
              i32.const -1
              i32.and
              local.get 2
              local.get 10
              i32.rotr
              i32.const 255
              i32.and
              memory.fill
            end
            local.get 0
            local.get 3
            local.get 5
            i64.const 51528
            i64.or
            i64.extend8_s
            global.get 1
            global.get 0
            local.tee 2
            i32.const 32767
            i32.and
            i32.const 1
            i32.or
            i32.div_s
            i32.const 12
            call_indirect (type 0)
            local.set 5
            drop
            local.set 6
          end
          i32.const 53406
          i32.load16_u offset=3061 align=1
          local.set 4
        end
        local.get 9
        i32.const 1
        i32.add
        local.tee 9
        i32.const 6
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 9
    i32.extend8_s
    i32.extend16_s
    local.get 3
    i32.add
    local.get 7
    global.get 1
    i32.const -2147483648
    i32.or
    i32.le_u
    memory.size
    i32.xor
    i32.or
    local.get 6
    i64.const -1978084910615093763
    i64.xor
    i32.wrap_i64
    i32.const 61439
    i32.and
    i32.load8_u offset=3178
    i32.const 0
    i32.xor
    local.get 2
    global.get 0
    i32.rotr
    i32.const -1827397838
    local.get 8
    global.get 1
    select
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    i32.rotr
    local.get 0
    i32.wrap_i64
    i32.const 61439
    i32.and
    i32.load8_s offset=2343
    local.get 2
    select
    i32.or
    i64.const 800176509469620594
    i32.const -1
    local.get 9
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_s
    local.tee 2
    local.get 5
    i64.const 621925760603335900
    i64.shr_u
    local.get 5
    i64.const 5870787709029575
    local.get 9
    select
    i32.const 65262
    i32.load8_u offset=9
    select
    local.get 7
    local.get 3
    global.get 0
    i32.const 0
    select
    i32.shl
    i32.const 2
    call_indirect (type 0)
    drop
    drop
    drop
    memory.size
    global.get 1
    local.get 3
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    i32.const 57092
    i32.const -1435675296
    i32.shr_s
    select
    global.get 1
    i32.extend16_s
    i32.eqz
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    if (result i64) ;; label = @1
      local.get 1
      local.get 9
      local.get 3
      i32.rotr
      i64.extend_i32_u
      local.tee 0
      global.get 3
      i64.extend16_s
      global.get 3
      i64.add
      i32.const -1597835102
      i32.const -461448834
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.div_u
      local.tee 2
      i32.const 59601
      i64.load32_u align=1
      local.get 6
      i64.const 127
      i32.const -1
      select
      i64.shr_s
      global.get 0
      call 0
      drop
      drop
      drop
      i32.const 25158
      global.get 1
      local.get 8
      i32.or
      i32.shr_u
      select
    else
      i64.const 3165594223441709856
    end
    local.get 10
    local.get 3
    i32.rotl
    local.get 10
    if (result i32) ;; label = @1
      local.get 7
    else
      local.get 9
    end
    i32.const 4092
    i32.and
    i32.load align=1
    i32.add
    i32.extend16_s
    local.get 10
    i32.rotr
    local.get 8
    i32.popcnt
    local.tee 2
    i32.const 61439
    i32.and
    i32.load offset=49 align=1
    global.get 1
    i32.const -2008615558
    i32.rotr
    i32.sub
    i64.extend_i32_u
    local.get 1
    i64.ctz
    local.get 1
    local.get 0
    i64.and
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_u
    i64.gt_u
    i32.shr_s
  )
  (data (;0;) (i32.const 27886) "\be\b1rG1u\96e\13G\c3\e0\f1;!p\8f\d5A\0f\16C\8cO\c9\16\d3]3\f9~\01\0f<\16pM\d1\07Tf\04\11\0a\88\c2K\0c\a9\c0Bh\d4\a4\cb \88\c9\af\8b#r/\1fh8+\c7#\019Cs\f0f\aa+\a5\1b\a4\f5v\19Gqx\d6\eb/\0c7\15%\a1|\1c\8e\b9.\cc@.I\e6Ewb\ff\aa@j0K\09\e5Tz6\99\11dj+(\14\06\85\f3\ca\ccx\f5<\0bY\13\df\bd\96kl\cdM\1d\aa;\0b\82\ce m\cb\1a\bc")
)

