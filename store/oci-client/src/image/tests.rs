//! Tests of manifests that contain a module, and of those that do not.

use super::*;
use module_store::Digest;

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
        // Distinct manifests, one for each platform.
        let digest = Digest::of(platform.as_bytes());
        format!(r#"{{"mediaType":"{MANIFEST_TYPE}","digest":"{digest}","size":7{platform}}}"#)
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
        (vec!["application/vnd.oci.image.layer.v1.tar+gzip"], Packing::Tar),
        (vec!["text/plain", "application/vnd.docker.image.rootfs.diff.tar.gzip"], Packing::Tar),
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
    // Ambiguous: two layers are modules.
    assert!(
        says(&image(&["application/wasm", "application/wasm"]), None)
            .contains("application/wasm, application/wasm")
    );
    let many = vec!["application/wasm"; ENTRIES_MAX + 1];
    assert!(says(&image(&many), None).contains("257 entries"));
}

#[test]
fn a_module_layer_is_found_beside_other_layers() {
    let read = |layers: &[&str]| match read(image(layers).as_bytes(), None) {
        Ok(Document::Image(found)) => (found.packing, found.is_all, found.layer.media_type),
        other => panic!("{other:?}"),
    };
    let (tar, wasm) = ("application/vnd.oci.image.layer.v1.tar+gzip", "application/wasm");
    assert_eq!(read(&[wasm]), (Packing::Plain, true, wasm.to_owned()));
    assert_eq!(read(&[wasm, "text/markdown"]), (Packing::Plain, false, wasm.to_owned()));
    assert_eq!(read(&["text/markdown", wasm, tar]), (Packing::Plain, false, wasm.to_owned()));
    assert_eq!(read(&["text/markdown", tar]), (Packing::Tar, false, tar.to_owned()));
    let zstd = says(&image(&[&tar.replace("gzip", "zstd")]), None);
    assert!(zstd.contains("tar+zstd, which is not supported"), "{zstd}");
}

#[test]
fn entries_for_wasm_are_preferred_in_an_index() {
    let candidates = |platforms: &[&str]| match read(index(platforms).as_bytes(), Some(INDEX_TYPE))
    {
        Ok(Document::Index(entries)) => entries
            .iter()
            .map(|entry| format!("{}/{}", entry.system().unwrap(), entry.architecture().unwrap()))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(candidates(&["wasip1/wasm"]), ["wasip1/wasm"]);
    assert_eq!(candidates(&["linux/amd64", "js/wasm", "linux/arm64"]), ["js/wasm"]);
    assert_eq!(candidates(&["wasip2/wasm", "wasip1/wasm"]), ["wasip1/wasm"]);
    assert_eq!(candidates(&["wasip2/wasm", "js/wasm"]), ["wasip2/wasm", "js/wasm"]);
    assert_eq!(candidates(&["linux/amd64", "linux/arm64"]), ["linux/amd64", "linux/arm64"]);
    assert_eq!(candidates(&["unknown/unknown", "linux/amd64"]), ["linux/amd64"]);
    assert_eq!(candidates(&["linux/unknown"]), ["linux/unknown"]);
    assert_eq!(candidates(&["unknown/unknown"]), Vec::<String>::new());
    assert_eq!(candidates(&[]), Vec::<String>::new());
    // Duplicates count once.
    let twice = index(&["linux/amd64"]);
    let entry = &twice[twice.find('[').unwrap() + 1..twice.rfind(']').unwrap()];
    let twice = format!(r#"{{"schemaVersion":2,"manifests":[{entry},{entry}]}}"#);
    assert!(matches!(read(twice.as_bytes(), None), Ok(Document::Index(one)) if one.len() == 1));
}

#[test]
fn contradictory_types_are_refused() {
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
