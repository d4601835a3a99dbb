//! What is taken for a module, and what is not.

use super::*;
use registry::Digest;

fn blob(media_type: &str, platform: &str) -> String {
    let digest = Digest::of(media_type.as_bytes());
    format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":7{platform}}}"#)
}

fn image(layers: &[&str]) -> String {
    let layers: Vec<String> = layers.iter().map(|layer| blob(layer, "")).collect();
    let config = blob("application/vnd.wasm.config.v0+json", "");
    format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","))
}

fn index(platforms: &[&str]) -> String {
    let entry = |platform: &&str| {
        let (system, architecture) = platform.split_once('/').unwrap();
        let platform =
            format!(r#","platform":{{"os":"{system}","architecture":"{architecture}"}}"#);
        blob(MANIFEST_TYPE, &platform)
    };
    let images: Vec<String> = platforms.iter().map(entry).collect();
    format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, images.join(","))
}

fn says(document: &str, said: Option<&str>) -> String {
    read(document.as_bytes(), said).unwrap_err().to_string()
}

#[test]
fn every_layout_of_a_module_is_read() {
    let cases = [
        (vec!["application/wasm"], Packing::Plain),
        (vec!["application/vnd.wasm.content.layer.v1+wasm"], Packing::Plain),
        (vec!["application/vnd.module.wasm.content.layer.v1+wasm"], Packing::Plain),
        (vec!["application/vnd.oci.image.layer.v1.tar"], Packing::Tar),
        (vec!["application/vnd.oci.image.layer.v1.tar+gzip"], Packing::TarGzip),
        (vec!["text/plain", "application/vnd.docker.image.rootfs.diff.tar.gzip"], Packing::TarGzip),
    ];
    for (layers, packing) in cases {
        let Ok(Document::Image(found)) = read(image(&layers).as_bytes(), Some(MANIFEST_TYPE))
        else {
            panic!("{layers:?}");
        };
        assert_eq!(
            (found.packing, found.layer.media_type.as_str()),
            (packing, layers[layers.len() - 1])
        );
    }
}

#[test]
fn an_image_without_a_module_is_refused_with_its_layers() {
    assert!(says(&image(&[]), None).contains("it has the layers none"));
    assert!(says(&image(&["text/plain"]), None).contains("it has the layers text/plain;"));
    // Which of two would be the module?
    assert!(
        says(&image(&["application/wasm", "application/wasm"]), None)
            .contains("application/wasm, application/wasm")
    );
    let many = vec!["application/wasm"; ENTRIES_MAX + 1];
    assert!(says(&image(&many), None).contains("257 entries"));
}

#[test]
fn the_image_for_wasm_is_chosen_and_what_is_ambiguous_is_listed() {
    let chosen = |platforms: &[&str]| read(index(platforms).as_bytes(), Some(INDEX_TYPE));
    let system = |platforms: &[&str]| match chosen(platforms) {
        Ok(Document::Index(image)) => image.system().unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(system(&["wasip1/wasm"]), "wasip1");
    assert_eq!(system(&["linux/amd64", "js/wasm", "linux/arm64"]), "js");
    assert_eq!(system(&["wasip2/wasm", "wasip1/wasm"]), "wasip1");
    let error = says(&index(&["wasip1/wasm", "wasip1/wasm"]), None);
    assert!(
        error.contains("several images for wasm: sha256:") && error.contains("(wasip1/wasm)"),
        "{error}"
    );
    let error = says(&index(&["linux/amd64", "linux/arm64"]), None);
    assert!(
        error.contains("no image for wasm, but sha256:") && error.contains("(linux/arm64)"),
        "{error}"
    );
    assert!(says(&index(&["linux/amd64"]), None).contains("no image for wasm"));
    assert!(says(r#"{"schemaVersion":2,"manifests":[]}"#, None).contains("but nothing"));
    let alone = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, blob(MANIFEST_TYPE, ""));
    assert!(matches!(read(alone.as_bytes(), None), Ok(Document::Index(_))));
}

#[test]
fn one_thing_said_two_ways_is_refused() {
    let both = image(&["application/wasm"]).replace("\"layers\"", "\"manifests\":[],\"layers\"");
    assert_eq!(read(both.as_bytes(), None), Err(ImageError::Both));
    assert_eq!(
        read(image(&["application/wasm"]).as_bytes(), Some(INDEX_TYPE)),
        Err(ImageError::Both)
    );
    assert_eq!(
        read(index(&["wasip1/wasm"]).as_bytes(), Some(MANIFEST_TYPE)),
        Err(ImageError::Both)
    );
    let typed = image(&["application/wasm"]).replacen(
        '{',
        &format!("{{\"mediaType\":\"{MANIFEST_TYPE}\","),
        1,
    );
    assert!(read(typed.as_bytes(), Some(MANIFEST_TYPE)).is_ok());
    assert!(matches!(
        read(typed.as_bytes(), Some(DOCKER_MANIFEST_TYPE)),
        Err(ImageError::TwoTypes { .. })
    ));
    let twice = typed.replacen("\"layers\"", "\"layers\":[],\"layers\"", 1);
    assert!(says(&twice, None).contains("duplicate field"));
    let old = typed.replace("\"schemaVersion\":2", "\"schemaVersion\":1");
    assert_eq!(read(old.as_bytes(), None), Err(ImageError::Schema(1)));
    for bad in ["", "{}", "[]", "null", r#"{"schemaVersion":2}"#, r#"{"schemaVersion":-1}"#] {
        assert!(matches!(read(bad.as_bytes(), None), Err(ImageError::NotADocument(_))), "{bad}");
    }
}
