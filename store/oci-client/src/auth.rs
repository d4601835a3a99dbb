//! Authentication at registries: credentials in docker's format, and bearer tokens that are
//! obtained with them.
//!
//! Sources: distribution, docs "Token Authentication Specification"; RFC 7617 (Basic), RFC 6750
//! (Bearer); docker's `config.json`, which skopeo, podman, oras and cosign read as well.

use std::fmt;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use http_auth::parse_challenges;
use hyper::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

use crate::address::Registry;
use crate::error::RepositoryError;
use crate::limits::TOKEN_LENGTH_MAX;

/// Longest `config.json` in bytes: some thousand registries.
const FILE_LENGTH_MAX: u64 = 1 << 20;

/// User name and password; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the password of {:?}", self.user)
    }
}

/// Bearer token that is sent unchanged; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl Token {
    /// Makes a token; `None` if it is not a valid header value, or too long.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_token = !text.is_empty() && text.len() <= TOKEN_LENGTH_MAX;
        secret(&format!("Bearer {text}")).filter(|_| is_token).map(Self)
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(default)]
    auth: String,
}

impl Credentials {
    /// Makes credentials.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned() }
    }

    /// Returns the credentials in a `config.json` for a registry; `None` if the file does not exist
    /// or has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(path: &Path, registry: &Registry) -> Result<Option<Self>, RepositoryError> {
        let wrong =
            |why: String| RepositoryError::Credentials { path: path.display().to_string(), why };
        let text = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if metadata.len() > FILE_LENGTH_MAX => {
                return Err(wrong(format!("it has more than {FILE_LENGTH_MAX} bytes")));
            }
            _ => std::fs::read(path).map_err(|error| wrong(error.to_string()))?,
        };
        Self::of_config(&text, registry).map_err(wrong)
    }

    /// Returns the credentials for a registry in the text of a `config.json`.
    fn of_config(text: &[u8], registry: &Registry) -> Result<Option<Self>, String> {
        // Parse errors may quote secrets, so only their position is reported.
        let config: Config = serde_json::from_slice(text)
            .map_err(|error| format!("line {} is no valid configuration", error.line()))?;
        let wanted = registry.to_string();
        let is_it = |key: &str| {
            let key = key.trim_start_matches("https://").trim_start_matches("http://");
            key.split('/').next() == Some(&wanted)
        };
        let Some((_, found)) = config.auths.iter().find(|(key, _)| is_it(key)) else {
            return Ok(None);
        };
        if found.auth.is_empty() {
            // Entry of a credential helper, which is not run.
            return Ok(None);
        }
        let bytes = Base64::decode_vec(&found.auth).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = text.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) =
            pair.ok_or_else(|| format!("what it has for {wanted} is no user and password"))?;
        Ok(Some(Self::new(user, password)))
    }

    /// Returns docker's default path: `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`.
    #[must_use]
    pub fn usual_file() -> Option<PathBuf> {
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = of("DOCKER_CONFIG").map(PathBuf::from);
        let home = || of("HOME").map(|home| PathBuf::from(home).join(".docker"));
        folder.or_else(home).map(|folder| folder.join("config.json"))
    }

    /// Returns the value of the header `Authorization`.
    pub(crate) fn basic(&self) -> Option<HeaderValue> {
        let pair = Base64::encode_string(format!("{}:{}", self.user, self.password).as_bytes());
        secret(&format!("Basic {pair}"))
    }
}

/// Makes a header value that is never printed.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Authentication that a registry requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User name and password (RFC 7617).
    Basic,
    /// Bearer token of a token server (RFC 6750).
    Bearer {
        /// URL of the token server.
        realm: String,
        /// Service that the token is for.
        service: Option<String>,
        /// Access that the token grants.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Returns the challenge to answer, from the headers `WWW-Authenticate`, each of which may have
    /// several (RFC 9110, 11.6.1). Bearer is preferred to Basic, since a token may be available
    /// without a password. `None` if there is neither.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter();
        let found: Vec<Self> =
            texts.filter_map(|value| value.to_str().ok()).flat_map(Self::all_of).collect();
        let is_token = |challenge: &&Self| matches!(challenge, Self::Bearer { .. });
        found.iter().find(is_token).or(found.first()).cloned()
    }

    /// Returns the known challenges of one header.
    #[must_use]
    pub fn all_of(header: &str) -> Vec<Self> {
        let Ok(challenges) = parse_challenges(header) else { return Vec::new() };
        let read = |challenge: &http_auth::ChallengeRef<'_>| {
            let parameter = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                return Some(Self::Basic);
            }
            let is_bearer = challenge.scheme.eq_ignore_ascii_case("bearer");
            let realm = parameter("realm").filter(|_| is_bearer)?;
            Some(Self::Bearer { realm, service: parameter("service"), scope: parameter("scope") })
        };
        challenges.iter().filter_map(read).collect()
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Returns the header `Authorization` for a token server's response.
pub(crate) fn bearer(answer: &[u8]) -> Result<HeaderValue, String> {
    let answer: TokenAnswer =
        serde_json::from_slice(answer).map_err(|_| "it is no token answer")?;
    let token = answer.token.or(answer.access_token).ok_or("it has no token in it")?;
    let token = Token::new(&token)
        .ok_or_else(|| format!("its token has {} characters, or is no header", token.len()));
    token.map(|token| token.0)
}

/// Returns the query of a request to a token server.
pub(crate) fn token_query(service: Option<&str>, scope: &str) -> String {
    let mut query = format!("scope={}", encoded(scope));
    if let Some(service) = service {
        query = format!("service={}&{query}", encoded(service));
    }
    query
}

/// Percent-encodes text (RFC 3986, section 2.1), except unreserved characters.
pub(crate) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(text: &str) -> Registry {
        text.parse().unwrap()
    }

    #[test]
    fn credentials_are_found_by_registry() {
        // Encodings of "alice:secret" and "bob:a:b".
        let text = br#"{"auths":{"https://ghcr.io/v1/":{"auth":"YWxpY2U6c2VjcmV0"},"localhost:5000":{"auth":"Ym9iOmE6Yg=="},"held.io":{}},"credsStore":"x"}"#;
        let of = |name: &str| Credentials::of_config(text, &registry(name)).unwrap();
        assert_eq!(of("ghcr.io"), Some(Credentials::new("alice", "secret")));
        assert_eq!(of("localhost:5000"), Some(Credentials::new("bob", "a:b")));
        assert_eq!(of("localhost"), None);
        assert_eq!(of("held.io"), None);
        let shown = format!("{:?} {:?}", of("ghcr.io"), of("ghcr.io").unwrap().basic());
        assert!(!shown.contains("secret") && !shown.contains("YWxp"), "{shown}");
    }

    #[test]
    fn an_invalid_file_is_reported_without_its_secrets() {
        for (text, says) in [
            ("{\n\"auths\":7}", "line 2"),
            (r#"{"auths":{"h.io":{"auth":"c2VjcmV0"}}}"#, "no user and password"),
        ] {
            let error = Credentials::of_config(text.as_bytes(), &registry("h.io")).unwrap_err();
            assert!(
                error.contains(says) && !error.contains("secret") && !error.contains("c2V"),
                "{error}"
            );
        }
    }

    #[test]
    fn challenges_are_those_of_the_specification() {
        let header = r#"Bearer realm="https://auth.io/token",service="r.io",scope="repository:a/b:pull,push""#;
        let bearer = Challenge::Bearer {
            realm: "https://auth.io/token".into(),
            service: Some("r.io".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        let of = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(WWW_AUTHENTICATE, line.parse().unwrap());
            }
            Challenge::of(&headers)
        };
        assert_eq!(of(&[header]), Some(bearer.clone()));
        assert_eq!(of(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        // Parameters in any order, schemes in any case, several challenges in one header or more.
        let odd = r#"bearer scope="repository:a/b:pull,push" , service="r.io",realm="https://auth.io/token""#;
        let two = format!(r#"Basic realm="a \"b\"", {header}"#);
        for lines in [&[odd][..], &[&two], &["BASIC realm=x", odd], &["Negotiate", "\"", header]] {
            assert_eq!(of(lines), Some(bearer.clone()), "{lines:?}");
        }
        for other in
            ["", "Negotiate", "Bearer", "Bearer service=x", "\"", "Digest realm=\"x\", nonce=\"y\""]
        {
            assert_eq!(of(&[other]), None, "{other}");
        }
        assert_eq!(
            token_query(Some("r.io"), "repository:a:pull"),
            "service=r.io&scope=repository%3Aa%3Apull"
        );
    }

    #[test]
    fn a_token_is_a_header_or_nothing() {
        assert!(bearer(br#"{"token":"abc","expires_in":60}"#).is_ok());
        assert!(bearer(br#"{"access_token":"abc"}"#).is_ok());
        let shown = format!("{:?} {:?}", Token::new("abc").unwrap(), Token::new("abc").unwrap().0);
        assert!(!shown.contains("abc"), "{shown}");
        let long = format!(r#"{{"token":"{}"}}"#, "a".repeat(TOKEN_LENGTH_MAX + 1));
        for bad in ["", "{}", r#"{"token":""}"#, r#"{"token":"a\nb"}"#, &long] {
            assert!(bearer(bad.as_bytes()).is_err());
        }
    }
}
