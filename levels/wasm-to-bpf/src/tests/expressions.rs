//! Random expressions: compares the compiler's result with Rust's. Constants are as frequent as
//! arguments, so that every rule meets its numbers.

use proptest::prelude::*;

use super::run;
use crate::TrapCode;

/// Expression of two arguments, as text and as a number.
#[derive(Clone, Debug)]
enum Expression {
    Argument(usize),
    Number(u64),
    Unary(&'static str, Box<Expression>),
    Binary(&'static str, Box<Expression>, Box<Expression>),
    Choice(Box<Expression>, Box<Expression>, Box<Expression>),
}

use Expression::{Argument, Binary, Choice, Number, Unary};

const UNARY: [&str; 6] = ["clz", "ctz", "popcnt", "extend8_s", "extend16_s", "eqz"];
const BINARY: [&str; 25] = [
    "add", "sub", "mul", "div_s", "div_u", "rem_s", "rem_u", "and", "or", "xor", "shl", "shr_s",
    "shr_u", "rotl", "rotr", "eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s",
    "ge_u",
];

fn expression() -> impl Strategy<Value = Expression> {
    let number = prop_oneof![
        prop::sample::select(
            &[
                0,
                1,
                2,
                7,
                8,
                16,
                24,
                31,
                32,
                33,
                63,
                64,
                0xff,
                0xff00,
                0xffff,
                0x00ff_00ff,
                0x7fff_ffff,
                0x8000_0000,
                0xffff_fffe,
                0xffff_ffff,
                0xff00_0000,
                1 << 63,
                u64::MAX,
            ][..]
        ),
        any::<u64>(),
    ];
    let leaf = prop_oneof![(0..2_usize).prop_map(Argument), number.prop_map(Number)];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let boxed = move || inner.clone().prop_map(Box::new);
        prop_oneof![
            1 => (prop::sample::select(&UNARY[..]), boxed()).prop_map(|(op, a)| Unary(op, a)),
            6 => (prop::sample::select(&BINARY[..]), boxed(), boxed())
                .prop_map(|(op, a, b)| Binary(op, a, b)),
            1 => (boxed(), boxed(), boxed()).prop_map(|(a, b, c)| Choice(a, b, c)),
        ]
    })
}

impl Expression {
    /// Returns the expression in the text format. A result of 32 bits is widened where 64 are
    /// needed.
    fn text(&self, long: bool) -> String {
        let ty = if long { "i64" } else { "i32" };
        let widened = |text: String, op: &str| match long && is_comparison(op) {
            true => format!("(i64.extend_i32_u {text})"),
            false => text,
        };
        match self {
            Argument(index) => format!("(local.get {index})"),
            Number(number) if long => format!("(i64.const {})", *number as i64),
            Number(number) => format!("(i32.const {})", *number as u32 as i32),
            Unary(op, a) => widened(format!("({ty}.{op} {})", a.text(long)), op),
            Binary(op, a, b) => {
                widened(format!("({ty}.{op} {} {})", a.text(long), b.text(long)), op)
            }
            Choice(condition, a, b) => {
                let condition = condition.text(long);
                let condition =
                    if long { format!("(i32.wrap_i64 {condition})") } else { condition };
                format!("(select {} {} {condition})", a.text(long), b.text(long))
            }
        }
    }
}

/// Computes the value in Rust at one width.
macro_rules! value {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        impl Expression {
            fn $name(&self, arguments: [$unsigned; 2]) -> Result<$unsigned, TrapCode> {
                Ok(match self {
                    Argument(index) => arguments[*index],
                    Number(number) => *number as $unsigned,
                    Unary(op, a) => {
                        let a = a.$name(arguments)?;
                        match *op {
                            "clz" => <$unsigned>::from(a.leading_zeros()),
                            "ctz" => <$unsigned>::from(a.trailing_zeros()),
                            "popcnt" => <$unsigned>::from(a.count_ones()),
                            "extend8_s" => a as i8 as $unsigned,
                            "extend16_s" => a as i16 as $unsigned,
                            _ => <$unsigned>::from(a == 0),
                        }
                    }
                    Binary(op, a, b) => {
                        let (a, b) = (a.$name(arguments)?, b.$name(arguments)?);
                        let (x, y, count) = (a as $signed, b as $signed, b as u32);
                        match *op {
                            "add" => a.wrapping_add(b),
                            "sub" => a.wrapping_sub(b),
                            "mul" => a.wrapping_mul(b),
                            "div_s" | "div_u" | "rem_s" | "rem_u" if b == 0 => {
                                return Err(TrapCode::DivisionByZero);
                            }
                            "div_s" => {
                                x.checked_div(y).ok_or(TrapCode::IntegerOverflow)? as $unsigned
                            }
                            "div_u" => a / b,
                            "rem_s" => x.wrapping_rem(y) as $unsigned,
                            "rem_u" => a % b,
                            "and" => a & b,
                            "or" => a | b,
                            "xor" => a ^ b,
                            "shl" => a.wrapping_shl(count),
                            "shr_s" => x.wrapping_shr(count) as $unsigned,
                            "shr_u" => a.wrapping_shr(count),
                            "rotl" => a.rotate_left(count % <$unsigned>::BITS),
                            "rotr" => a.rotate_right(count % <$unsigned>::BITS),
                            other => <$unsigned>::from(compared(
                                other,
                                i64::from(x),
                                i64::from(y),
                                a.cmp(&b),
                            )),
                        }
                    }
                    Choice(condition, a, b) => {
                        // All three are computed, in this order.
                        let (a, b) = (a.$name(arguments)?, b.$name(arguments)?);
                        if condition.$name(arguments)? as u32 != 0 { a } else { b }
                    }
                })
            }
        }
    };
}

value!(value_32, u32, i32);
value!(value_64, u64, i64);

fn is_comparison(op: &str) -> bool {
    op == "eqz" || BINARY[15..].contains(&op)
}

fn compared(op: &str, x: i64, y: i64, unsigned: std::cmp::Ordering) -> bool {
    match op {
        "eq" => unsigned.is_eq(),
        "ne" => unsigned.is_ne(),
        "lt_s" => x < y,
        "lt_u" => unsigned.is_lt(),
        "gt_s" => x > y,
        "gt_u" => unsigned.is_gt(),
        "le_s" => x <= y,
        "le_u" => unsigned.is_le(),
        "ge_s" => x >= y,
        _ => unsigned.is_ge(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expressions_of_32_bits(
        expression in expression(),
        a in prop_oneof![any::<u32>(), 0..300_u32],
        b in prop_oneof![any::<u32>(), 0..300_u32],
    ) {
        let text = format!(
            r#"(module (func (export "f") (param i32 i32) (result i32) {}))"#,
            expression.text(false)
        );
        let expected = expression.value_32([a, b]).map(|value| vec![u64::from(value)]);
        prop_assert_eq!(run(&text, "f", &[u64::from(a), u64::from(b)]), expected);
    }

    #[test]
    fn expressions_of_64_bits(
        expression in expression(),
        a in prop_oneof![any::<u64>(), 0..300_u64],
        b in prop_oneof![any::<u64>(), 0..300_u64],
    ) {
        let text = format!(
            r#"(module (func (export "f") (param i64 i64) (result i64) {}))"#,
            expression.text(true)
        );
        let expected = expression.value_64([a, b]).map(|value| vec![value]);
        prop_assert_eq!(run(&text, "f", &[a, b]), expected);
    }
}
