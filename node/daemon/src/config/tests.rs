//! Node files: what is taken, what is refused, and the place and the words of each refusal.

use super::*;

fn refused(text: &str) -> String {
    NodeFile::parse(text, "node.toml").unwrap_err().to_string()
}

#[test]
fn the_sample_is_a_node_file() {
    let file = NodeFile::parse(SAMPLE_CONFIG, "sample").unwrap();
    assert_eq!((file.name.as_str(), file.ports.len()), ("r1", 2));
    assert_eq!(file.fast_path, FastPath::Auto);
    assert_eq!(file.state, Path::new("/var/lib/tamandua/r1"));
    assert!(file.wanted.is_empty());
    // What it shows in comments is right, too.
    let text = SAMPLE_CONFIG.replace("# [[service", "[[service").replace("# [[rule", "[[rule");
    let text = text.replace("# module", "module");
    let text = text.replace("# parameters", "parameters").replace("# rules", "rules");
    let text = text.replace("# match", "match").replace("# action", "action");
    let wanted = NodeFile::parse(&text, "sample").unwrap().wanted;
    assert_eq!((wanted.services.len(), wanted.rules.len()), (1, 1));
}

#[test]
fn a_bridge_is_a_pair_or_a_list_of_pairs() {
    let read = |text: &str| {
        let file = NodeFile::parse(&format!("name = \"r1\"\nbridge = {text}\n"), "node.toml");
        file.map(|file| file.bridge.0.len()).map_err(|error| error.to_string())
    };
    assert_eq!(read(r#"["a", "b"]"#), Ok(1));
    assert_eq!(read(r#"[["a", "b"], ["c", "d"]]"#), Ok(2));
    let said = read(r#"["a", "b", "c"]"#).unwrap_err();
    assert!(said.contains("line 2") && said.contains("two ports"), "{said}");
}

#[test]
fn a_typing_error_has_its_line_and_a_suggestion() {
    let message = refused("name = \"r1\"\nfastpath = \"auto\"\n");
    assert!(message.contains("line 2") && message.contains("'fast_path'"), "{message}");
    let message = refused("name = \"R1\"\n");
    assert!(message.contains("line 1") && message.contains("'R'"), "{message}");
    let with =
        |line: &str| refused(&format!("name = \"r1\"\n[[service]]\nmodule = \"m\"\n{line}\n"));
    let message = with("levl = \"nic\"");
    assert!(message.contains("line 4, column 1") && message.contains("'level'"), "{message}");
    let message = with("level = \"nik\"");
    assert!(message.contains("line 4, column 9") && message.contains("'nic'"), "{message}");
    let message = with("rules = [\"any\", \"proto udp dprt 53\"]");
    assert!(message.contains("line 4, column 17") && message.contains("'dport'"), "{message}");
    let message = with("budget = { packts = 5 }");
    assert!(message.contains("line 4") && message.contains("'packets'"), "{message}");
    let message = with("parameters = { dscp = [1] }");
    assert!(message.contains("line 4") && message.contains("whole number"), "{message}");
    let message = refused("name = \"r1\"\n[[rule]]\nmatch = \"any\"\naction = \"reject\"\n");
    assert!(message.contains("line 4") && message.contains("'drop'"), "{message}");
    let message = refused("[[rule]]\nmatch = \"any\"\naction = \"drop\"\n");
    assert!(message.contains("names no node"), "{message}");
    let message = refused("name = \"store\"\n");
    assert!(message.contains("directory of its own"), "{message}");
}

#[test]
fn values_of_parameters_are_written_as_what_they_are() {
    let text = "name = \"r1\"\n[[service]]\nmodule = \"m\"\n\
                parameters = { dscp = 10, strict = true, peer = \"10.0.0.1\" }\n";
    let file = NodeFile::parse(text, "node.toml").unwrap();
    let parameters = file.wanted.services[0].get_ref().parameters.clone().unwrap().into_inner();
    let values: Vec<&str> = parameters.values().map(|value| value.0.as_str()).collect();
    assert_eq!(values, ["10", "10.0.0.1", "true"]);
}

#[test]
fn a_file_that_is_applied_agrees_with_the_node_or_leaves_out_what_it_cannot_change() {
    let node = "name = \"r1\"\n[[port]]\nname = \"left\"\ndevice = \"eth1\"\n";
    let node = NodeFile::parse(node, "node.toml").unwrap();
    let rule = "[[rule]]\nmatch = \"in left\"\naction = \"drop\"\n";
    assert_eq!(node.parse_wanted(rule, "edge.toml").unwrap().rules.len(), 1);
    let refused = |text: &str| node.parse_wanted(text, "edge.toml").unwrap_err().to_string();
    let port = "[[port]]\nname = \"left\"\ndevice = \"eth2\"\n";
    for (text, line, says) in [
        ("name = \"r2\"\n".to_owned(), 1, "node 'r2'"),
        (format!("name = \"r1\"\n{port}"), 2, "ports"),
        ("\nfast_path = \"never\"\n".to_owned(), 2, "restart"),
        ("store = \"/elsewhere\"\n".to_owned(), 1, "/var/lib/tamandua/store"),
        ("guest_core = 1\n".to_owned(), 1, "left out"),
    ] {
        let message = refused(&text);
        let place = format!("edge.toml, line {line}, column");
        assert!(message.starts_with(&place) && message.contains(says), "{message}");
    }
}

const KEY: &str = "ed25519/d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const FLOWS_MAX: u32 = bpf::front_door::FLOWS_LARGE_MAX;

#[test]
fn each_mistake_at_the_top_of_a_file_has_its_place_and_its_reason() {
    let list = |key: &str, count: usize, text: &str| {
        format!("[trust]\n{key} = [{}]", vec![format!("\"{text}\""); count].join(", "))
    };
    for (lines, says) in [
        ("fast_path = \"often\"", "line 2, column 13: unknown variant 'often'"),
        ("guest_core = -1", "line 2, column 14: expected a whole number"),
        ("bpf = \"yes\"", "line 2, column 7: expected true or false, found the text"),
        ("flow_cache = 4194305", "line 2, column 14: a flow cache of 4194305 flows is too large"),
        ("ledger_every = 0", "a ledger that is written every 0 s is none; 1 to 3600"),
        ("ledger_every = 3601", "a ledger that is written every 3601 s is none; 1 to 3600"),
        ("[metrics]\nlisten = \"localhost:1\"", "line 3, column 10: invalid socket address"),
        ("[api]", "line 2, column 1: missing field 'listen'"),
        ("[api]\nlisten = \"[::1]:7443\"\ntls = 1", "unknown field 'tls' in [api]"),
        (&list("signers", 65, KEY), "line 3, column 11: a node believes at most 64 signers"),
        (&list("administrators", 17, KEY), "a node believes at most 16 administrators"),
        (&list("anyone", 65, "name:ping"), "line 3, column 10: at most 64 patterns"),
        (&list("anyone", 1, "ping"), "'ping' is no module; it is sha256: and 64"),
        (&list("signers", 1, "rsa/00"), "line 3, column 11: 'rsa/00' is no"),
        ("[trust]\nunsigned = \"maybe\"", "line 3, column 12: unknown variant 'maybe'"),
        ("[[port]]\ndevice = \"eth1\"", "missing field 'name'"),
    ] {
        let said = refused(&format!("name = \"r1\"\n{lines}\n"));
        assert!(said.starts_with("node.toml, line ") && said.contains(says), "{said}\n{says}");
    }
    for (flows, every) in [(0, 1), (FLOWS_MAX, 3600)] {
        let text = format!("name = \"r1\"\nflow_cache = {flows}\nledger_every = {every}\n");
        let file = NodeFile::parse(&text, "node.toml").unwrap();
        assert_eq!((file.flow_cache.0, file.ledger_every.0), (flows, every));
    }
}

#[test]
fn a_file_that_says_little_means_what_is_usual() {
    let file = NodeFile::parse("name = \"edge-1\"", "node.toml").unwrap();
    assert_eq!((file.fast_path, file.flow_cache.0), (FastPath::Auto, 65_536));
    assert_eq!(file.ledger_every.0, 10);
    assert_eq!(file.store, Path::new("/var/lib/tamandua/store"));
    assert_eq!(file.state, Path::new("/var/lib/tamandua/edge-1"));
    assert_eq!(file.trust.unsigned, Unsigned::Refuse, "nothing runs that nobody has signed");
    assert!(file.metrics.is_none() && file.api.is_none() && file.associations.is_none());
    assert!(file.wanted.is_empty() && file.wanted.bpf && file.ports.is_empty());
    let rule = "[[rule]]\nmatch = \"any\"\naction = \"drop\"";
    for text in ["bpf = false", "[[session]]\nname = \"gold\"", rule] {
        let file = NodeFile::parse(&format!("name = \"r1\"\n{text}\n"), "node.toml").unwrap();
        assert!(!file.wanted.is_empty(), "{text}");
    }
}

#[test]
fn a_file_as_a_whole_is_refused_by_its_length_its_name_or_its_directories() {
    let long = format!("name = \"r1\"\n#{}", " ".repeat(FILE_LENGTH_MAX));
    let says = format!("node.toml has {} bytes, a node file has at most 8388608", long.len());
    assert_eq!(refused(&long), says);
    assert!(NodeFile::parse(&long[..FILE_LENGTH_MAX], "node.toml").is_ok());
    let says = "node.toml names no node; write name = \"r1\" in its first line";
    assert_eq!(refused("bpf = true\n"), says);
    let one = "name = \"r1\"\nstore = \"/srv/a\"\nstate = \"/srv/a\"\n";
    let says = "node.toml: store and state are both /srv/a; give the state a directory of its own";
    assert_eq!(refused(one), says);
    assert!(NodeFile::parse(&one.replacen("/srv/a", "/srv/b", 1), "node.toml").is_ok());
}

#[test]
fn places_are_counted_in_lines_and_characters() {
    for (before, place) in [
        ("", "line 2, column 7"),
        ("# ä ö ü\n", "line 3, column 7"),
        ("\r\n\r\n", "line 4, column 7"),
    ] {
        let said = refused(&format!("name = \"r1\"\n{before}bpf = \"ä\"\n"));
        assert!(said.contains(place), "{before:?}: {said}");
    }
    let list = "module = \"m\"\nrules = [\n  \"any\",\n  \"ü\",\n]\n";
    let said = refused(&format!("name = \"r1\"\n[[service]]\n{list}"));
    assert!(said.starts_with("node.toml, line 6, column 3: "), "{said}");
}

#[test]
fn settings_read_at_start_cannot_be_applied_unless_they_are_unchanged() {
    let text = format!(
        "name = \"r1\"\nfast_path = \"always\"\nstore = \"/srv/store\"\nstate = \"/srv/state\"\n\
         guest_core = 1\nflow_cache = 7\nledger_every = 7\nbridge = [\"left\", \"right\"]\n\
         [metrics]\nlisten = \"127.0.0.1:1\"\n[api]\nlisten = \"127.0.0.1:2\"\n\
         [trust]\nsigners = [\"{KEY}\"]\n[associations]\nlisten = [\"10.0.0.1:3\"]\n\
         [[repository]]\nregistry = \"a.b/m\"\n[[port]]\nname = \"left\"\ndevice = \"eth1\"\n\
         [[port]]\nname = \"right\"\ndevice = \"eth2\"\n"
    );
    let node = NodeFile::parse(&text, "node.toml").unwrap();
    assert!(node.parse_wanted(&text, "edge.toml").unwrap().is_empty());
    let plain = NodeFile::parse("name = \"r1\"", "node.toml").unwrap();
    let restart = "on the node, which reads it when it starts; restart the node with this file, or leave it out here";
    let (store, state) = ("/var/lib/tamandua/store", "/var/lib/tamandua/r1");
    for (from, to, line, here, usual) in [
        ("\"always\"", "\"never\"", 2, "fast_path is never here and always", "auto"),
        ("/srv/store", "/srv/other", 3, "store is /srv/other here and /srv/store", store),
        ("/srv/state", "/srv/other", 4, "state is /srv/other here and /srv/state", state),
        ("guest_core = 1", "guest_core = 2", 5, "guest_core is 2 here and 1", "left out"),
        ("flow_cache = 7", "flow_cache = 8", 6, "flow_cache is 8 here and 7", "65536"),
        ("ledger_every = 7", "ledger_every = 8", 7, "ledger_every is 8 here and 7", "10"),
        ("0.1:1", "0.1:9", 9, "metrics is 127.0.0.1:9 here and 127.0.0.1:1", "nowhere"),
        ("0.1:2", "0.1:9", 11, "api is 127.0.0.1:9 here and 127.0.0.1:2", "nowhere"),
    ] {
        let said = node.parse_wanted(&text.replace(from, to), "edge.toml").unwrap_err();
        let said = said.to_string();
        assert!(said.starts_with(&format!("edge.toml, line {line}, column ")), "{said}");
        assert!(said.ends_with(&format!(": {here} {restart}")), "{said}");
        // The same line on a node whose file lacks it.
        let alone: String = text.split('\n').filter(|it| it.contains(from)).collect();
        let table = here.split(' ').next().unwrap_or_default();
        let is_listen = alone.starts_with("listen");
        let alone = if is_listen { format!("[{table}]\n{alone}") } else { alone };
        let said = plain.parse_wanted(&alone, "edge.toml").unwrap_err().to_string();
        assert!(said.ends_with(&format!(" here and {usual} {restart}")), "{said}");
    }
    for (from, to, says) in [
        ("signers", "administrators", "[trust] is not that of the node"),
        ("10.0.0.1:3", "10.0.0.1:4", "[associations] is not that of the node"),
        ("a.b/m", "a.b/n", "the repositories are not those of the node"),
        ("[\"left\", \"right\"]", "[\"right\", \"left\"]", "the bridged pairs are not those"),
        ("eth2", "eth3", "the ports are not those of the node"),
    ] {
        let said = node.parse_wanted(&text.replace(from, to), "edge.toml").unwrap_err();
        let said = said.to_string();
        assert!(said.contains(says) && said.contains("restart the node with this file"), "{said}");
    }
    let other = text.replace("name = \"r1\"", "# a node\nname = \"r2\"");
    let said = node.parse_wanted(&other, "edge.toml").unwrap_err().to_string();
    let says = "line 2, column 1: this is the file of node 'r2', and the node is 'r1'";
    assert_eq!(said, format!("edge.toml, {says}"));
}

#[test]
fn a_file_says_its_modules_and_its_node_before_the_node_is_asked() {
    let service = |module: &str| format!("[[service]]\nmodule = \"{module}\"\n");
    let text = format!("name = \"r1\"\n{}{}", service("./a.wasm"), service("b"));
    let modules = Wanted::modules(&text, "edge.toml").unwrap();
    let named = modules.iter().map(|it| it.at(&format!("no '{}'", it.module)));
    let says = ["line 3, column 10: no './a.wasm'", "line 5, column 10: no 'b'"];
    assert_eq!(named.collect::<Vec<_>>(), says.map(|it| format!("edge.toml, {it}")));
    assert_eq!(Wanted::node_of(&text, "edge.toml").unwrap(), Name::new("r1").ok());
    assert_eq!(Wanted::node_of("", "edge.toml").unwrap(), None);
    assert!(Wanted::node_of("name = 7", "edge.toml").is_err());
    for (module, expected) in [
        ("monitor.wasm", true),
        ("./monitor", true),
        ("/srv/monitor", true),
        ("monitor", false),
        ("monitor:0.1.0", false),
        ("sha256:00", false),
        ("wasm", false),
    ] {
        assert_eq!(is_file(module), expected, "{module}");
    }
}
