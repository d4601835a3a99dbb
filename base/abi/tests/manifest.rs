//! Tests of the manifest's grammar: each limit from both sides, each message with its line.

use abi::host::Need;
use abi::manifest::{
    Event, KeyField, Lanes, Level, Manifest, ManifestError, ParameterType, ParameterValue,
};
use units::Name;

const SMALLEST: &str = "abi = 1\nname = \"m\"\nversion = \"0.1.0\"\nwindow = 64\n";

fn parse(more: &str) -> Result<Manifest, ManifestError> {
    Manifest::parse(&format!("{SMALLEST}{more}"))
}

/// Returns the message, which must begin with its line.
fn refused_at(line: usize, more: &str) -> String {
    let message = parse(more).expect_err(more).to_string();
    assert!(message.starts_with(&format!("line {line} of the manifest")), "{more:?}: {message}");
    message
}

#[test]
fn what_is_left_out_has_its_default() {
    let manifest = parse("").unwrap();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("m", "0.1.0"));
    assert_eq!((manifest.window, manifest.state_version), (64, 1));
    assert_eq!(manifest.lanes, Lanes::Count(1));
    assert_eq!(manifest.levels, [Level::User]);
    assert_eq!((manifest.memory_pages_max, manifest.timer_ms), (None, None));
    assert!(manifest.needs.is_empty() && manifest.parameters.is_empty());
}

#[test]
fn every_field_is_read() {
    let manifest = parse(
        "state_version = 7\nlanes = \"per-core\"\nlevels = [\"nic\", \"kernel\", \"user\", \"cluster\"]\n\
         memory_pages_max = 256\ntimer_ms = 3_600_000\nneeds = [\"events\", \"send\"]\n\
         description = \"a line\"\n[parameters.to]\ntype = \"ipv6\"\ndefault = \"2001:db8::1\"\n\
         description = \"where to\"\n[reasons]\n0 = \"none\"\n65535 = \"last\"\n[refusals]\n1 = \"no port\"\n",
    )
    .unwrap();
    assert_eq!((manifest.state_version, manifest.lanes), (7, Lanes::PerCore));
    assert_eq!(manifest.levels, Level::ALL);
    assert_eq!((manifest.memory_pages_max, manifest.timer_ms), (Some(256), Some(3_600_000)));
    assert_eq!(manifest.needs, [Need::Events, Need::Send]);
    let parameter = &manifest.parameters[&Name::new("to").unwrap()];
    assert_eq!(parameter.kind, ParameterType::Ipv6);
    assert_eq!(parameter.default, Some(ParameterValue::Ipv6("2001:db8::1".parse().unwrap())));
    assert_eq!(manifest.reasons[&65_535], "last");
    assert_eq!(manifest.refusals[&1], "no port");
}

#[test]
fn required_fields_are_asked_for_with_an_example() {
    for field in ["abi", "name", "version", "window"] {
        let text: String = SMALLEST
            .lines()
            .filter(|line| !line.starts_with(field))
            .flat_map(|line| [line, "\n"])
            .collect();
        let message = Manifest::parse(&text).unwrap_err().to_string();
        assert!(message.contains(&format!("no field '{field}'")), "{message}");
        assert!(message.contains(&format!("as in {field} = ")), "{message}");
    }
}

#[test]
fn numbers_keep_their_limits() {
    for (field, min, max) in [("lanes", 1, 64), ("memory_pages_max", 1, 256)] {
        assert!(parse(&format!("{field} = {min}")).is_ok());
        assert!(parse(&format!("{field} = {max}")).is_ok());
        refused_at(5, &format!("{field} = {}", min - 1));
        refused_at(5, &format!("{field} = {}", max + 1));
    }
    refused_at(5, "timer_ms = 3_600_001");
    refused_at(5, "state_version = -1");
    for (window, fits) in [("0", true), ("2048", true), ("2049", false), ("-1", false)] {
        let text = SMALLEST.replace("window = 64", &format!("window = {window}"));
        assert_eq!(Manifest::parse(&text).is_ok(), fits, "{window}");
    }
}

#[test]
fn an_unknown_word_is_answered_with_the_meant_one() {
    for (more, meant) in [
        ("lane = 2", "did you mean 'lanes'"),
        ("levels = [\"kernal\"]", "did you mean 'kernel'"),
        ("needs = [\"event\"]", "did you mean 'events'"),
        ("lanes = \"per-cpu\"", "did you mean 'per-core'"),
    ] {
        let message = refused_at(5, more);
        assert!(message.contains(meant), "{message}");
    }
    let message = refused_at(7, "[parameters.x]\ntype = \"u8\"\ndefalt = 1");
    assert!(message.contains("[parameters.x] has no field"), "{message}");
    let message = refused_at(6, "[parameters.x]\ntype = \"u9\"");
    assert!(message.contains("known: u8, u16, u32"), "{message}");
}

#[test]
fn a_value_of_another_type_is_refused() {
    for more in ["lanes = 1.5", "levels = \"user\"", "timer_ms = true", "needs = [1]"] {
        assert!(refused_at(5, more).contains("it must be"), "{more}");
    }
    refused_at(5, "parameters = 3");
}

#[test]
fn lists_have_each_word_once() {
    assert!(refused_at(5, "levels = [\"user\", \"user\"]").contains("twice"));
    assert!(refused_at(5, "levels = []").contains("empty"));
    assert!(refused_at(6, "[reasons]\n7 = \"a\"\n07 = \"b\"").contains("twice"));
}

#[test]
fn versions_can_be_ordered_and_tagged() {
    let with = |version: &str| Manifest::parse(&SMALLEST.replace("0.1.0", version));
    for good in ["0.0.0", "10.20.30", "1.0.0-rc.1", "1.0.0-a-b"] {
        assert!(with(good).is_ok(), "{good}");
    }
    for bad in ["", "1", "1.0", "1.0.0.0", "01.0.0", "v1.0.0", "1.0.0+x", "1.0.0-", "1.0.x"] {
        assert!(matches!(with(bad), Err(ManifestError::Version { line: 3, .. })), "{bad}");
    }
    assert!(with(&format!("1.0.0-{}", "a".repeat(64))).is_err());
}

#[test]
fn a_default_is_a_value_of_its_type() {
    let parameter = |kind: &str, default: &str| {
        parse(&format!("[parameters.x]\ntype = \"{kind}\"\ndefault = {default}\n"))
    };
    for (kind, default) in
        [("u8", "255"), ("bool", "true"), ("text", "\"x\""), ("ipv4", "\"10.0.0.1\"")]
    {
        assert!(parameter(kind, default).is_ok(), "{kind}");
    }
    for (kind, default) in
        [("u8", "256"), ("bool", "\"true\""), ("text", "1"), ("ipv4", "\"::1\""), ("u64", "-1")]
    {
        let error = parameter(kind, default).unwrap_err();
        assert!(matches!(error, ManifestError::Default { line: 7, .. }), "{kind}: {error}");
    }
}

#[test]
fn text_that_a_terminal_obeys_is_refused() {
    refused_at(5, r#"description = "\u001b[2J""#);
    refused_at(6, "[reasons]\n1 = \"a\\nb\"");
    refused_at(5, &format!("description = \"{}\"", "x".repeat(257)));
}

#[test]
fn reasons_are_numbered() {
    refused_at(6, "[reasons]\n65536 = \"too large\"");
    refused_at(6, "[reasons]\nshort = \"no number\"");
    let refusal = refused_at(6, "[refusals]\n0 = \"no refusal\"");
    assert!(refusal.contains("[refusals] must be a number from 1 to 65535"), "{refusal}");
    refused_at(6, "[refusals]\n1 = \"a\"\n01 = \"b\"");
    let long = "x".repeat(129);
    refused_at(6, &format!("[refusals]\n1 = \"{long}\""));
}

#[test]
fn parameters_have_names_and_are_few() {
    refused_at(6, "[parameters]\n\"A B\" = { type = \"u8\" }");
    let many: String = (0..33).map(|n| format!("[parameters.p{n}]\ntype = \"u8\"\n")).collect();
    assert!(matches!(parse(&many), Err(ManifestError::Parameters { count: 33 })));
}

#[test]
fn what_is_no_toml_has_its_line() {
    refused_at(6, "lanes = 1\nlevels = [");
    assert!(matches!(
        Manifest::parse(&"#".repeat(4097)),
        Err(ManifestError::TooLong { length: 4097 })
    ));
    assert!(matches!(
        Manifest::parse_bytes(b"abi = 1\n\xff"),
        Err(ManifestError::NotText { position: 8 })
    ));
}

#[test]
fn pools_have_lanes_a_processor_and_events() {
    let text = "timer_ms = 10\nflows_by = [\"source\", \"rule\"]\n\
        [pools.fast]\nlanes = 4\nevents = [\"packet\"]\n\
        [pools.slow]\nprocessor = 7\nevents = [\"timer\", \"message\"]\n";
    let manifest = parse(text).unwrap();
    assert_eq!(manifest.lanes, Lanes::Count(5));
    assert_eq!(manifest.flows_by, [KeyField::Source, KeyField::Rule]);
    let [fast, slow] = &manifest.pools[..] else { panic!("{:?}", manifest.pools) };
    assert_eq!((fast.name.as_str(), fast.lanes, fast.processor), ("fast", 4, 0));
    assert_eq!((slow.name.as_str(), slow.lanes, slow.processor), ("slow", 1, 7));
    assert_eq!(fast.events, [Event::Packet]);
    assert_eq!(slow.events, [Event::Timer, Event::Message]);
    assert!(parse("").unwrap().pools.is_empty());
}

#[test]
fn pools_that_make_no_sense_are_refused_with_what_to_do() {
    let packets = "events = [\"packet\"]\n";
    let many: String = (0..9).map(|n| format!("[pools.p{n}]\n{packets}")).collect();
    for (line, text, says) in [
        (5, format!("lanes = 2\n[pools.a]\n{packets}"), "leave it out"),
        (5, format!("[pools.a]\nlanes = 60\n{packets}[pools.b]\nlanes = 5\n{packets}"), "65 lanes"),
        (5, "[pools.a]\nevents = [\"message\"]\n".into(), "no pool has the event \"packet\""),
        (6, format!("timer_ms = 5\n[pools.a]\n{packets}"), "no pool has the event \"timer\""),
        (5, "[pools.a]\nevents = [\"packet\", \"timer\"]\n".into(), "there is no 'timer_ms'"),
        (5, many, "9 pools"),
        (6, "[pools.a]\nlanes = 0\nevents = [\"packet\"]\n".into(), "from 1 to 64"),
        (6, "[pools.a]\nprocessor = 8\nevents = [\"packet\"]\n".into(), "from 0 to 7"),
        (6, "[pools.a]\nevents = []\n".into(), "'events' is empty"),
        (6, "[pools.a]\nevents = [\"packets\"]\n".into(), "packet"),
        (6, "[pools.a]\nevent = [\"packet\"]\n".into(), "no field \"event\""),
        (5, "flows_by = []\n".into(), "'flows_by' is empty"),
        (5, "flows_by = [\"sourceport\"]\n".into(), "source_port"),
        (5, "flows_by = [\"rule\", \"rule\"]\n".into(), "twice"),
    ] {
        let message = refused_at(line, &text);
        assert!(message.contains(says), "{text:?}: {message}");
    }
    let message = parse("[pools.a]\nlanes = 2\n").unwrap_err().to_string();
    assert!(message.contains("no field 'events'"), "{message}");
}
