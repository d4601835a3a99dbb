(module
  (type (;0;) (func (param i64) (result i64 i64 i64)))
  (type (;1;) (func (result i32)))
  (table (;0;) 12 12 funcref)
  (memory (;0;) 1 4)
  (global (;0;) (mut i32) i32.const 7302)
  (global (;1;) (mut i32) i32.const -1)
  (global (;2;) (mut i64) i64.const 3912890554)
  (global (;3;) (mut i64) i64.const 9223372036854775807)
  (export "f0" (func 0))
  (export "f1" (func 1))
  (export "g0" (global 0))
  (export "g1" (global 1))
  (export "g2" (global 2))
  (export "g3" (global 3))
  (export "memory" (memory 0))
  (func (;0;) (type 0) (param i64) (result i64 i64 i64)
    (local i32 i32 i32 i32 i32 i32 i64 i64 i64 i32 i32 i64 i64 i32 i32 i32 i32)
    local.get 1
    local.tee 1
    i32.const 4
    i32.rem_u
    local.set 16
    block ;; label = @1
      loop ;; label = @2
        block (result i32) ;; label = @3
          local.get 10
          local.get 1
          i32.const 61439
          i32.and
          i32.load16_s offset=4 align=1
          i32.extend8_s
          i32.const 32767
          i32.and
          i32.const 1
          i32.or
          i32.rem_u
          global.get 3
          i64.const 16422
          i64.sub
          i64.const 6537163565887493293
          i64.gt_u
          if (result i32) ;; label = @4
            i64.const 1009492419064659
            local.get 12
            local.get 17
            select
            local.get 7
            global.get 2
            i64.const 32767
            i64.and
            i64.const 1
            i64.or
            i64.rem_s
            i64.gt_u
          else
            i32.const 37318
            i64.extend_i32_s
            i32.wrap_i64
          end
          br_if 0 (;@3;)
          drop
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    local.get 15
                    br_table 0 (;@8;) 0 (;@8;) 2 (;@6;) 0 (;@8;) 3 (;@5;)
                  end
                  local.get 13
                  local.get 13
                  i64.lt_u
                  i32.const 61439
                  i32.and
                  local.get 5
                  local.get 16
                  i32.le_s
                  i32.const -1
                  i32.and
                  i32.const 126795593
                  local.tee 1
                  i32.const 255
                  i32.and
                  memory.fill
                  br 3 (;@4;)
                end
                local.get 3
                i32.const 5193
                i32.rotl
                local.get 13
                i32.wrap_i64
                i32.const 32767
                i32.and
                i32.const 1
                i32.or
                i32.div_u
                i32.const 61439
                i32.and
                i64.load8_s offset=2712
                local.get 10
                i32.const 20346
                i32.load8_u offset=2336
                if (result i32) ;; label = @7
                  local.get 14
                  local.get 17
                  i32.mul
                else
                  i32.const -1
                end
                local.get 17
                select
                if (result i64) ;; label = @7
                  i64.const -7543766465537381676
                  i64.const 392222554555983048
                  local.get 9
                  i64.or
                  i64.ctz
                  i64.const 32767
                  i64.and
                  i64.const 1
                  i64.or
                  i64.rem_s
                else
                  local.get 12
                end
                i64.add
                global.set 2
                br 2 (;@4;)
              end
              i32.const 128824348
              memory.size
              local.get 11
              i32.rotr
              i32.rotr
              local.set 6
            end
            local.get 1
            i32.const 61439
            i32.and
            i32.const -1947663978
            i32.clz
            i32.const -1
            i32.and
            local.get 1
            i32.const 16383
            i32.and
            memory.fill
          end
          local.get 7
          local.get 13
          local.get 7
          local.get 13
          i32.wrap_i64
          select
          local.get 12
          i64.const 723270
          i64.const 11010
          i64.or
          i32.const 1
          local.get 6
          i32.mul
          select
          i64.and
          i64.const 32767
          i64.and
          i64.const 1
          i64.or
          i64.div_u
          i32.wrap_i64
          local.set 1
          local.get 14
        end
        local.set 2
        i32.const -803157472
        if ;; label = @3
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    global.get 0
                    br_table 0 (;@8;) 2 (;@6;) 1 (;@7;) 0 (;@8;) 1 (;@7;)
                  end
                  i64.const -9223372036854775808
                  local.get 8
                  i64.xor
                  i64.const 63014
                  local.get 9
                  i64.sub
                  i64.rotr
                  local.tee 0
                  i64.ctz
                  local.get 11
                  local.get 4
                  local.get 6
                  select
                  global.get 1
                  local.get 6
                  i32.rotl
                  i32.and
                  i32.const 61439
                  i32.and
                  i64.load offset=4081 align=1
                  local.get 4
                  i64.extend_i32_u
                  local.get 10
                  select
                  local.get 14
                  i32.const 2
                  i32.sub
                  i64.extend_i32_u
                  local.get 0
                  local.get 8
                  local.get 13
                  i64.xor
                  i64.const 32767
                  i64.and
                  i64.const 1
                  i64.or
                  i64.div_s
                  i64.shr_u
                  local.get 10
                  i32.const 60777
                  i32.load offset=973 align=1
                  i32.mul
                  local.get 4
                  i32.or
                  select
                  i64.const 32767
                  i64.and
                  i64.const 1
                  i64.or
                  i64.rem_s
                  global.set 2
                end
                local.get 3
                i32.const 61439
                i32.and
                local.get 11
                global.get 1
                i32.const 32767
                i32.and
                i32.const 1
                i32.or
                i32.div_s
                i32.const -1
                i32.and
                global.get 0
                local.get 1
                i32.mul
                i32.const 4095
                i32.and
                memory.fill
              end
              i64.const 44267
              i32.wrap_i64
              if (result i64) ;; label = @6
                local.get 12
              else
                i32.const 0
                i64.extend_i32_u
                local.get 8
                global.get 2
                i64.and
                i64.const 1087958384542685731
                local.get 12
                i32.const 1
                select
                i64.shr_u
                local.get 15
                i32.const -1
                i32.shr_u
                i32.ctz
                i32.const 61439
                i32.and
                i64.load8_u
                i32.const 2
                memory.grow
                i32.const 61439
                i32.and
                i64.load16_s offset=30 align=1
                i64.rotr
                i64.add
                global.get 3
                local.get 12
                local.get 2
                i64.extend_i32_u
                i64.shr_u
                i64.ge_u
                select
              end
              local.set 8
            end
            local.get 2
            if (result i64) ;; label = @5
              i64.const 2147483647
              global.get 2
              i64.const 31620
              local.get 6
              select
              i64.const 32767
              i64.and
              i64.const 1
              i64.or
              i64.rem_s
              i32.const 1253250998
              local.get 17
              i32.or
              i64.extend_i32_s
              i64.rotr
              i64.const 4903573974360500080
              i64.ctz
              i64.const 50
              i64.const -1
              local.get 6
              select
              global.get 3
              local.get 9
              i64.sub
              i64.sub
              i64.or
              i64.sub
            else
              global.get 2
            end
            local.set 0
            br 0 (;@4;)
          end
          global.get 3
          i64.clz
          local.get 9
          local.get 12
          i32.const 25911
          select
          i64.le_s
          local.get 15
          local.get 4
          i32.extend16_s
          i32.xor
          i32.rotl
          i64.extend_i32_u
          local.get 7
          i64.and
          global.set 3
        else
          local.get 1
          local.set 6
          i64.const 121610
          i32.wrap_i64
          i32.popcnt
          memory.size
          i32.shl
          global.get 1
          i32.const 37072
          i32.const 25876
          i32.shl
          i32.const -1677611939
          i32.const 1476598108
          i32.shr_u
          i32.shl
          i32.const 32767
          i32.and
          i32.const 1
          i32.or
          i32.div_u
          i32.sub
          if (result i32) ;; label = @4
            local.get 8
            i32.wrap_i64
            i32.const 61439
            i32.and
            i32.load align=1
            i32.const 9335
            local.get 6
            local.get 3
            i32.shr_u
            i32.gt_u
            local.get 16
            i32.ne
            i32.shr_u
          else
            local.get 8
            local.get 12
            i64.add
            i64.clz
            i64.const 231808853457
            local.get 10
            local.get 4
            if (result i32) ;; label = @5
              i32.const 1483325458
            else
              local.get 6
            end
            i32.shr_s
            select
            i32.wrap_i64
          end
          local.set 10
        end
        local.get 14
        global.get 1
        i32.or
        i32.const 5
        i32.rem_u
        local.set 15
        block ;; label = @3
          loop ;; label = @4
            i32.const 4540
            local.get 13
            i64.ctz
            i64.store16 align=1
            local.get 10
            if ;; label = @5
              local.get 16
              local.get 1
              if (result i32) ;; label = @6
                local.get 7
                i32.wrap_i64
              else
                global.get 1
              end
              global.get 0
              i32.and
              i32.or
              global.set 1
              i32.const 7907462
              local.set 1
              local.get 5
              local.get 10
              i32.or
              local.get 16
              i32.shr_s
              local.set 5
            else
              local.get 4
              i32.const 61439
              i32.and
              local.get 4
              i64.extend_i32_s
              i64.store32 offset=86 align=1
            end
            local.get 14
            local.get 2
            local.get 11
            select
            br_if 1 (;@3;)
            local.get 15
            i32.const 1
            i32.add
            local.tee 15
            i32.const 5
            i32.lt_u
            br_if 0 (;@4;)
          end
        end
        i32.const -2147483648
        br_if 1 (;@1;)
        local.get 16
        i32.const 1
        i32.add
        local.tee 16
        i32.const 4
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 12
    global.get 3
    local.get 0
    local.tee 0
    local.get 13
    i64.const 42428
    i64.add
    i64.shr_u
    local.get 1
    select
    i64.const -3693712417919966030
    local.get 9
    local.tee 0
    i64.sub
    local.tee 0
    i64.add
    local.get 7
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_u
    local.get 9
    i64.const -9223372036854775808
    i64.extend8_s
    i64.rotl
    i32.const 1
    local.get 6
    i32.sub
    i64.const 5508178399870819651
    i32.wrap_i64
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_s
    i32.const 61439
    i32.and
    i64.load8_s offset=60322
    global.get 3
    local.get 8
    i32.const -1341501966
    select
    i64.add
    local.get 3
    i32.eqz
    local.get 16
    local.get 17
    i32.const 181
    select
    i32.mul
    select
    local.get 13
    local.get 8
    local.get 9
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_s
    local.get 9
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.div_s
    i64.xor
    i64.rotr
    local.get 17
    local.get 6
    local.get 5
    i32.shr_u
    i32.ne
    local.get 5
    if (result i32) ;; label = @1
      global.get 1
    else
      local.get 14
    end
    local.get 4
    if (result i32) ;; label = @1
      local.get 16
    else
      i32.const 39336
    end
    i32.shr_u
    i32.sub
    if (result i64) ;; label = @1
      local.get 12
      local.get 7
      i64.shr_s
      local.get 8
      i64.const 2147483648
      i64.or
      i64.shr_u
      local.get 0
      i64.xor
    else
      i64.const 1
      i32.wrap_i64
      if (result i64) ;; label = @2
        global.get 2
        local.get 0
        i64.const 32767
        i64.and
        i64.const 1
        i64.or
        i64.rem_u
      else
        local.get 7
        local.get 7
        global.get 0
        select
      end
      local.get 13
      local.get 8
      global.get 3
      i64.sub
      local.get 8
      i32.wrap_i64
      select
      i64.rotr
    end
    i64.rotr
  )
  (func (;1;) (type 1) (result i32)
    (local i64 i64 i32 i64 i32 i32 i32 i32 i32 i32)
    i64.const 5
    global.get 2
    i64.add
    local.get 3
    i64.extend8_s
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.div_u
    call 0
    local.set 0
    local.set 3
    local.set 1
    local.get 2
  )
  (data (;0;) (i32.const 55097) "^j\c8\9fp\05M\97\bd\d9\cf\ed\b6)\8dN\df\fe:\bdT\e4\d75`\9en\dc\fc\0e\0a\fa\8dz\1d\85'\0b\f0/n9\03\a7\93_\0f\e2\d3\8a\de\dbH}\de\cba\98\83\b9o@\02\b1\12\d7B\f6\d4\b1\9b\ed\ee\18\7f*\0c\d6u\04@\97M\a52\1b\84H\e6\06\e0#\cd\b8\03\b2'7\0c\0a<ZhP\0e\bc\94V\d3\f2`WL>\bf\bf\bcl\fc }\cc\a49\88x\fb\93\e9\038!\fc|E\1bZ\0e\96X\e54r\db&\e3\e3\d8\0c\d2\19\f8\887\f2l\8d\ebU\fe\ebFaWn\b8.\bb\c6\00y\e6\b9\10\d5\99\1b%.\95\b0VQ#\85J$P\f8\bc\b7\c2\e3\b5k\e6p\023")
  (data (;1;) (i32.const 28675) "\91,\a0\5c\1a3\e5\ff\13\b4P\13\f7d?\88\f9k\e1\a5g\a1\c4\f7v\14\d6qMC\15\90\81_\c2\c8\bb\8d\dfCu\c0\fc\e4He^\c6\d9?\a1\0b=\96")
)

