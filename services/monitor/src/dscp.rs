//! Counters for each of the 64 code points (RFC 2474), by the packets' original code point.
//! `dscp_0` is best effort, `dscp_46` expedited forwarding.

use tam::Counter;

/// Returns the counter of a code point; ignores its high 2 bits.
pub fn counter(dscp: u8) -> &'static Counter {
    ALL[usize::from(dscp & 63)]
}

macro_rules! counters_of_code_points {
    ($($name:ident = $shown:literal),* $(,)?) => {
        tam::counters! {
            $(
                /// Packets that came with this code point.
                static $name = $shown;
            )*
        }

        static ALL: [&Counter; 64] = [$(&$name),*];
    };
}

counters_of_code_points! {
    D0 = "dscp_0",
    D1 = "dscp_1",
    D2 = "dscp_2",
    D3 = "dscp_3",
    D4 = "dscp_4",
    D5 = "dscp_5",
    D6 = "dscp_6",
    D7 = "dscp_7",
    D8 = "dscp_8",
    D9 = "dscp_9",
    D10 = "dscp_10",
    D11 = "dscp_11",
    D12 = "dscp_12",
    D13 = "dscp_13",
    D14 = "dscp_14",
    D15 = "dscp_15",
    D16 = "dscp_16",
    D17 = "dscp_17",
    D18 = "dscp_18",
    D19 = "dscp_19",
    D20 = "dscp_20",
    D21 = "dscp_21",
    D22 = "dscp_22",
    D23 = "dscp_23",
    D24 = "dscp_24",
    D25 = "dscp_25",
    D26 = "dscp_26",
    D27 = "dscp_27",
    D28 = "dscp_28",
    D29 = "dscp_29",
    D30 = "dscp_30",
    D31 = "dscp_31",
    D32 = "dscp_32",
    D33 = "dscp_33",
    D34 = "dscp_34",
    D35 = "dscp_35",
    D36 = "dscp_36",
    D37 = "dscp_37",
    D38 = "dscp_38",
    D39 = "dscp_39",
    D40 = "dscp_40",
    D41 = "dscp_41",
    D42 = "dscp_42",
    D43 = "dscp_43",
    D44 = "dscp_44",
    D45 = "dscp_45",
    D46 = "dscp_46",
    D47 = "dscp_47",
    D48 = "dscp_48",
    D49 = "dscp_49",
    D50 = "dscp_50",
    D51 = "dscp_51",
    D52 = "dscp_52",
    D53 = "dscp_53",
    D54 = "dscp_54",
    D55 = "dscp_55",
    D56 = "dscp_56",
    D57 = "dscp_57",
    D58 = "dscp_58",
    D59 = "dscp_59",
    D60 = "dscp_60",
    D61 = "dscp_61",
    D62 = "dscp_62",
    D63 = "dscp_63",
}
