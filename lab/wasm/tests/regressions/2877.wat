(module
  (type (;0;) (func (param i32 i32) (result i32 i32)))
  (type (;1;) (func (param i32 i32 i32 i32) (result i64 i32)))
  (type (;2;) (func (param i64 i64 i64 i32) (result i64 i32)))
  (type (;3;) (func (param i32 i32 i32) (result i32)))
  (table (;0;) 12 12 funcref)
  (memory (;0;) 1 4)
  (global (;0;) (mut i32) i32.const 2147483647)
  (global (;1;) (mut i32) i32.const 1675504841)
  (global (;2;) (mut i64) i64.const 2045)
  (global (;3;) (mut i64) i64.const 5818839520693907333)
  (export "f0" (func 0))
  (export "f1" (func 1))
  (export "f2" (func 2))
  (export "f3" (func 3))
  (export "g0" (global 0))
  (export "g1" (global 1))
  (export "g2" (global 2))
  (export "g3" (global 3))
  (export "memory" (memory 0))
  (elem (;0;) (i32.const 0) func 1 0 1 1 1)
  (func (;0;) (type 0) (param i32 i32) (result i32 i32)
    (local i64 i32 i32 i32 i32)
    local.get 3
    local.set 0
    global.get 2
    local.get 2
    i64.gt_s
    i32.extend16_s
    global.get 3
    global.get 3
    local.get 2
    global.get 2
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_s
    i64.rotl
    global.get 2
    i64.xor
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_u
    i32.wrap_i64
  )
  (func (;1;) (type 1) (param i32 i32 i32 i32) (result i64 i32)
    (local i64 i64 i32 i32 i32 i32)
    global.get 2
    global.get 3
    i64.const 60866
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.div_s
    i64.ge_s
    i32.const 61439
    i32.and
    local.get 5
    global.get 3
    i64.le_s
    i32.const 64388
    i32.eqz
    i32.shl
    i32.const 61439
    i32.and
    i64.load offset=107 align=1
    local.get 5
    local.get 9
    select
    local.get 4
    local.get 5
    i64.add
    local.get 4
    local.tee 4
    i64.const 32767
    i64.and
    i64.const 1
    i64.or
    i64.rem_u
    i64.eq
    i64.extend_i32_s
    i64.store align=1
    global.get 3
    local.get 5
    i64.xor
    i32.wrap_i64
    i32.const 61439
    i32.and
    i32.const -716462500
    local.get 6
    local.get 0
    i32.rotl
    global.get 0
    i32.const 1648862499
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    i32.xor
    local.get 1
    local.get 2
    i32.or
    local.get 6
    local.get 0
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_u
    i32.rotl
    i32.mul
    i32.sub
    i32.store16 offset=27 align=1
    local.get 9
    global.get 1
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_s
    i32.const 4
    i32.rem_u
    local.set 8
    block ;; label = @1
      loop ;; label = @2
        global.get 3
        global.get 3
        i64.sub
        i32.wrap_i64
        local.get 1
        i32.const 61439
        i32.and
        i32.load8_u offset=1517
        global.get 2
        i32.wrap_i64
        i32.xor
        i32.rotl
        if ;; label = @3
          i32.const 0
          local.set 6
          block ;; label = @4
            loop ;; label = @5
              memory.size
              i32.ctz
              i32.const 61439
              i32.and
              i32.const 4360
              i64.extend_i32_s
              i64.const 25
              i64.const 5760
              i64.and
              i64.shr_u
              i32.const -1563260746
              if (result i64) ;; label = @6
                local.get 5
              else
                i64.const -1
              end
              global.get 2
              global.get 2
              local.get 1
              select
              global.get 0
              global.get 0
              i32.add
              select
              i64.sub
              i64.extend32_s
              i64.store32 offset=42 align=1
              local.get 4
              global.set 2
              local.get 6
              i32.const 1
              i32.add
              local.tee 6
              i32.const 5
              i32.lt_u
              br_if 0 (;@5;)
            end
          end
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    local.get 1
                    global.get 2
                    i32.wrap_i64
                    i32.mul
                    br_table 0 (;@8;) 2 (;@6;) 4 (;@4;) 4 (;@4;) 4 (;@4;)
                  end
                  local.get 0
                  local.set 0
                end
                i32.const 0
                if (result i32) ;; label = @7
                  global.get 0
                else
                  global.get 0
                end
                i32.const 61439
                i32.and
                local.get 3
                local.get 7
                local.get 7
                i32.ge_u
                i32.lt_s
                i32.const 61439
                i32.and
                i32.load16_s offset=9 align=1
                local.get 1
                local.get 2
                i32.shl
                i32.shr_u
                i32.const 61439
                i32.and
                i32.load16_u offset=58 align=1
                i32.const 61439
                i32.and
                i32.const 63
                memory.copy
                br 2 (;@4;)
              end
              local.get 3
              local.set 1
            end
            local.get 8
            local.get 8
            i32.sub
            local.get 7
            i32.const -1473198156
            i32.xor
            i32.add
            i32.const 61439
            i32.and
            local.get 5
            i64.store offset=208 align=1
            br 0 (;@4;)
          end
          i32.const 54435
          local.get 4
          i64.extend32_s
          i32.const 890790730
          if (result i64) ;; label = @4
            i64.const 5351191625844351340
          else
            global.get 3
          end
          local.get 1
          if (result i32) ;; label = @4
            i32.const -316649198
          else
            local.get 7
          end
          select
          global.get 2
          i64.extend8_s
          local.get 4
          i64.or
          i64.shl
          i32.const 584038965
          if (result i64) ;; label = @4
            i64.const 25910
          else
            i64.const 51939
          end
          local.get 3
          i64.extend_i32_s
          global.get 1
          select
          global.get 3
          i64.shr_s
          i64.sub
          i64.store8 offset=16
          block ;; label = @4
            block ;; label = @5
              block ;; label = @6
                block ;; label = @7
                  block ;; label = @8
                    local.get 5
                    i64.extend32_s
                    i32.wrap_i64
                    i32.const 7
                    i32.and
                    br_table 1 (;@7;) 0 (;@8;) 0 (;@8;) 1 (;@7;) 2 (;@6;)
                  end
                  local.get 3
                  i32.extend8_s
                  local.get 8
                  i32.rotl
                  local.set 2
                end
                local.get 5
                local.get 1
                if (result i64) ;; label = @7
                  i64.const 20073
                else
                  i64.const 4294967296
                end
                i64.and
                local.tee 4
                i32.const 7429
                if (result i64) ;; label = @7
                  local.get 0
                  i64.extend_i32_s
                else
                  global.get 3
                end
                i64.const -1
                i64.sub
                i64.shl
                i64.extend16_s
                local.set 5
              end
              i32.const 44051
              i32.const 5640
              i32.store offset=7 align=1
              br 1 (;@4;)
            end
            local.get 4
            i32.wrap_i64
            local.get 8
            local.get 8
            i32.sub
            i32.mul
            global.get 0
            if (result i32) ;; label = @5
              local.get 7
            else
              local.get 0
            end
            i32.popcnt
            local.get 8
            if (result i32) ;; label = @5
              local.get 6
            else
              local.get 8
            end
            global.get 1
            i32.const -1515915204
            local.get 8
            i32.shr_u
            select
            call 0
            drop
            drop
            local.get 5
            i32.wrap_i64
            i32.add
            local.get 8
            i32.const 668975010
            local.get 6
            i32.rotl
            i32.eqz
            local.get 7
            i32.add
            global.get 3
            global.get 3
            i64.rotr
            i64.const 52345
            global.get 2
            global.get 1
            select
            i64.shr_s
            i32.wrap_i64
            select
            i32.shr_s
            local.set 3
            br 0 (;@4;)
          end
          local.get 6
          local.set 2
        end
        memory.size
        i32.eqz
        br_if 1 (;@1;)
        local.get 8
        i32.const 1
        i32.add
        local.tee 8
        i32.const 4
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    i64.const 65167
    i64.const -5141190216335854999
    local.get 4
    i64.xor
    local.get 4
    local.get 5
    i64.add
    local.tee 4
    i64.mul
    local.get 4
    i64.rotr
    i64.rotr
    i32.const 38542
    i32.load offset=2085 align=1
    if (result i32) ;; label = @1
      global.get 3
      global.get 2
      i64.rotl
      i32.wrap_i64
      i32.const 61439
      i32.and
      i32.load16_u offset=5 align=1
      i64.extend_i32_u
      i32.wrap_i64
      if (result i32) ;; label = @2
        local.get 1
        local.get 9
        i32.le_s
        i32.const 4092
        i32.and
        i32.load offset=27 align=1
      else
        local.get 0
      end
    else
      local.get 1
    end
  )
  (func (;2;) (type 2) (param i64 i64 i64 i32) (result i64 i32)
    (local i32 i32 i64 i32 i32 i32 i32)
    local.get 7
    local.get 9
    call 0
    local.set 5
    local.set 4
    local.get 3
    local.get 4
    global.get 0
    local.get 8
    select
    global.get 3
    i32.wrap_i64
    select
    i32.extend8_s
    local.get 7
    i32.extend16_s
    i32.eqz
    if (result i32) ;; label = @1
      local.get 5
    else
      local.get 8
      i32.eqz
    end
    i32.mul
    i32.const -1
    if (result i32) ;; label = @1
      i32.const -1
    else
      global.get 1
    end
    i32.const 10626
    i32.const -131282182
    i32.shr_u
    i32.sub
    i32.const 61439
    i32.and
    i32.load8_u offset=23
    global.get 3
    i32.wrap_i64
    local.get 4
    i32.add
    i32.const -1673232996
    i32.ctz
    memory.size
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    i32.const 61439
    i32.and
    i32.load8_s offset=468
    i32.const 61439
    i32.and
    i32.load8_u offset=60
    local.tee 3
    select
    i32.lt_s
    local.set 5
    local.get 0
    i64.const 4294967295
    local.tee 0
    i64.rotr
    i32.const 30915
  )
  (func (;3;) (type 3) (param i32 i32 i32) (result i32)
    (local i32 i32 i32 i32 i64 i32 i32 i32 i32 i32)
    block (result i64) ;; label = @1
      global.get 2
      i32.const -906208266
      br_if 0 (;@1;)
      drop
      i32.const 24195
      local.get 3
      i32.sub
      global.get 0
      i32.eqz
      i32.xor
      local.get 8
      i32.const 383780630
      i32.add
      local.get 12
      i32.const 32631
      i32.const 32767
      i32.and
      i32.const 1
      i32.or
      i32.rem_u
      i32.sub
      local.get 7
      local.get 7
      i64.const 32767
      i64.and
      i64.const 1
      i64.or
      i64.div_u
      i32.wrap_i64
      memory.size
      call 1
      local.set 5
      local.set 7
      local.get 0
      i32.const 201313
      i32.const 0
      select
      if (result i64) ;; label = @2
        global.get 3
        global.get 3
        i64.and
      else
        global.get 3
        i64.const 329397633557523104
        i64.add
      end
      i64.extend32_s
    end
    local.set 7
    local.get 12
    global.get 2
    local.get 7
    i64.lt_u
    i32.shl
    local.get 11
    local.get 11
    i32.add
    i32.const 4092
    i32.and
    i32.load8_s offset=4
    local.get 1
    global.get 0
    i32.and
    local.get 11
    i32.const 0
    i32.rotl
    i32.or
    i32.const 61439
    i32.and
    i32.load8_s offset=55
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
    i32.const 475
    local.get 9
    global.get 1
    select
    i64.const 1089044907488043697
    i32.wrap_i64
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.rem_u
    i32.const -1101071790
    local.get 11
    i32.xor
    i32.extend16_s
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_s
    i32.rotr
    local.get 0
    local.get 5
    local.get 11
    select
    local.get 0
    i32.const -2147483648
    select
    i32.const 61439
    i32.and
    i32.load offset=1 align=1
    i32.const 32767
    i32.and
    i32.const 1
    i32.or
    i32.div_u
    local.set 3
    i32.const 55576
    i32.ctz
    i32.const 1171762385
    i32.const 2
    i32.const 3
    select
    i32.sub
    i32.const 1998124813
    local.get 2
    i32.eqz
    i32.const -928070013
    local.get 0
    i32.or
    select
    i32.ge_s
    if (result i32) ;; label = @1
      local.get 5
      local.get 9
      i32.shl
    else
      global.get 2
      local.get 7
      i64.lt_s
    end
    i32.const 0
    i32.const 61439
    i32.and
    i32.load8_s offset=40116
    i32.const 61439
    i32.and
    i32.load8_u offset=41
    i32.clz
    i64.const 4762
    i32.wrap_i64
    select
    local.set 6
    local.get 10
    local.tee 0
  )
  (data (;0;) (i32.const 27756) "<\e2\1ef\e0I\d7\ee\8aX\ba\1e\e2y\c8e\e5?f\dfi&\ac\da\9c\f0\5c\90eE\b1z1\c7\e0IZ\172\22\a3\fcQ\00v|-\9f\f3\cfc\a3\b4\8f~\8dFw\da\de\a6\e6+\84\b4V@A/\05MW\f3i\0f\e6\02z\b6\88dK\8e\c46\b87I\98N\86}\1d:T\8d\e8x\e3KNKd\cd^\f2\b4\d3=\8c\1a\a8?\8btN8(\87\9e\bd\0e\a4 \f7rO\ac\bc\dc+c\a9t\a3\b4.xBM\c23\85\aaS#\b8\fe\97U\afX\c2*\1c\a8\e1\e3&\82i\82}\8f?\09\ebiVu3+\84\bdh+6\f6\13`\c5\b4VD\bc_\00\d3m\89\df\95#\ba\08\d0Nl\8dZ\1e\12XW@\f4\08\f1\0al\c1\9b>\f12\a7\af\15\bd\b5`J\e2\c6\b7$z,aYq\a8 \d0l\1a\de\97\b50\e4R$\ba\8f\fe\1dh\fa\af\92\da\fb\15\ca\92\a2\0bK\f8\be\96H\d7X\e4\e9\b9\f0W\aa\c4\f9\c6p\0c\e6/,w\a5r\b0\b6\fe\99\f9Y z$\c04\92\de\22\96")
  (data (;1;) (i32.const 42171) "\c1\f1Gd\9d\act\f3\86\a6\8fEm\f5{Ut \0d\0c;\c4\ff^\81&\a6^\a5S <(J\ec.Dz\1f \0f\13\a7\0a\e7\f7w\a6\01\19\b6\eez\ccO\1d\fc\00G\82\e3\8eXT9Q\e7\e9\bd\9e3xC\95\c2\d93\caL=W\14\ed\c6\8c\9ch\a2U\92\05\8f\95\97\1f\cc \bc,\88\c7K\91)\0b6\a2\1dm\1f\ccO'n9\c8\07N")
)

