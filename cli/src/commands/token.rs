//! `tam token`: capabilities, signed by an administrator and narrowed by their holders.

use super::Context;
use super::key::{Passphrase, public, random, secret};
use crate::failure::{Failure, Outcome};
use crate::user_files::{held_token, token_failure as failed};
use api::{ErrorCode, RevokeRequest, SCHEMA_VERSION};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use std::path::{Path, PathBuf};
use trust::{Grant, HeldToken, Token as Signed, UnixTime};

mod gaps;
mod grant;

use grant::GrantArgs;

/// Subcommands of `tam token`.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Sign a token that grants what the options say, and nothing else
    New(New),
    /// Narrow a token, to pass it on; needs no administrator
    Attenuate(Attenuate),
    /// Show what a token grants
    Inspect(Inspect),
    /// Revoke a token, all tokens derived from it, or a key on a node
    Revoke(Revoke),
}

/// Arguments of `tam token new`.
#[derive(Debug, Args)]
pub struct New {
    /// The administrator's key that signs the token
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    key: String,
    #[command(flatten)]
    passphrase: Passphrase,
    /// The principal that the token is for, which acts and pays
    #[arg(long = "for", value_name = "NAME|FILE|ed25519/…")]
    principal: String,
    /// Grant everything, as to an administrator; other options narrow this
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    grant: GrantArgs,
}

/// Arguments of `tam token attenuate`.
#[derive(Debug, Args)]
pub struct Attenuate {
    /// The token's file; - for standard input
    #[arg(value_name = "TOKEN")]
    token: PathBuf,
    #[command(flatten)]
    grant: GrantArgs,
}

/// Arguments of `tam token inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The token's file; - for standard input
    #[arg(value_name = "TOKEN")]
    token: PathBuf,
    /// Also check that this administrator has signed the token
    #[arg(long, value_name = "NAME|FILE|ed25519/…")]
    root: Option<String>,
}

/// Arguments of `tam token revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    /// A token's file, a block's id, or a public key; - for a token on standard input
    #[arg(value_name = "TOKEN|ID|ed25519/…", required_unless_present = "list")]
    what: Vec<String>,
    /// Revoke a token file's first block, and so every token derived from it
    #[arg(long)]
    whole: bool,
    /// List what is revoked
    #[arg(long, conflicts_with_all = ["what", "whole"])]
    list: bool,
}

impl Token {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        match self {
            Self::New(new) => new.run(context),
            Self::Attenuate(attenuate) => attenuate.run(context),
            Self::Inspect(inspect) => inspect.run(context),
            Self::Revoke(revoke) => revoke.run(context),
        }
    }
}

impl New {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let grant = self.grant.of(if self.admin { Grant::all() } else { Grant::none() })?;
        let principal = public(&self.principal)?;
        let key = secret(&self.key, &self.passphrase)?;
        let token = Signed::mint(&key, principal, &grant, &random()?).map_err(|e| failed(&e))?;
        let held = token.held().map_err(|error| failed(&error))?;
        give(context, &held, &grant)
    }
}

impl Attenuate {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let grant = self.grant.of(Grant::all())?;
        if grant == Grant::all() {
            let message = "nothing says what to leave of the token";
            return Err(Failure::new(ErrorCode::Usage, message)
                .help("as in --may read --until 1h; see `tam token attenuate --help`"));
        }
        let held =
            held_token(&self.token)?.narrow(&grant, &random()?).map_err(|error| failed(&error))?;
        give(context, &held, &grant)
    }
}

impl Inspect {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let held = held_token(&self.token)?;
        let signed = match &self.root {
            Some(root) => {
                let token = Signed::verify(&held.to_string(), &[public(root)?]);
                Some(token.map_err(|error| failed(&error))?)
            }
            None => None,
        };
        let ids: Vec<String> = held.revocation_ids().iter().map(ToString::to_string).collect();
        let blocks: Vec<_> = held.blocks().into_iter().zip(&ids).collect();
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "principal": signed.as_ref().map(|token| token.principal().to_string()),
            "signature": if signed.is_some() { "good" } else { "not looked at" },
            "blocks": blocks.iter().map(|(source, id)| json!({
                "datalog": source, "revocation_id": id,
            })).collect::<Vec<_>>(),
        });
        context.output.result(&document, || {
            let mut text = match &signed {
                Some(token) => format!("signed by that administrator, for {}\n", token.principal()),
                None => "who signed it was not looked at: --root KEY\n".to_owned(),
            };
            for (number, (source, id)) in blocks.iter().enumerate() {
                let by = if number == 0 { "the administrator's" } else { "a holder's" };
                text += &format!("\nblock {number}, {by}\n");
                source.lines().for_each(|line| text += &format!("  {line}{}\n", prefix_note(line)));
                text += &format!("  // revoked by {id}\n");
            }
            crate::output::escaped_lines(&text)
        })
    }
}

impl Revoke {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        if self.list {
            let list = client.revocations()?;
            return context.output.result(&list, || list.revoked.join("\n"));
        }
        let revoke = self.what.iter().map(|what| self.id(what)).collect::<Result<_, _>>()?;
        let revoked = client.revoke(&RevokeRequest { revoke })?;
        context.output.result(&revoked, || {
            let mut text = format!("{} revoked", revoked.revoked);
            if !revoked.services.is_empty() {
                text += &format!(", stopped: {}", revoked.services.join(", "));
            }
            if !revoked.rules.is_empty() {
                text += &format!(", {} rules removed", revoked.rules.len());
            }
            text
        })
    }

    /// Returns the id that the node is asked to revoke.
    fn id(&self, what: &str) -> Result<String, Failure> {
        let is_id =
            what.parse::<trust::PublicKey>().is_ok() || what.parse::<trust::RevocationId>().is_ok();
        if is_id {
            return Ok(what.to_owned());
        }
        let ids = held_token(Path::new(what))?.revocation_ids();
        let id = if self.whole { ids.first() } else { ids.last() };
        id.map(ToString::to_string)
            .ok_or_else(|| Failure::new(ErrorCode::Usage, "the token has no block"))
    }
}

/// Notes that a token stores a prefix as its bits.
fn prefix_note(line: &str) -> String {
    let bits = line.strip_prefix("grant(\"traffic\", \"").and_then(|rest| rest.split('"').next());
    let prefix = bits.and_then(trust::grant::of_bits);
    prefix.map(|prefix| format!(" // {prefix}")).unwrap_or_default()
}

/// Prints a token, and warns of granted rights that can never be used.
fn give(context: &Context<'_>, held: &HeldToken, grant: &Grant) -> Outcome {
    let now = Timestamp::now().as_second();
    let warnings = gaps::gaps(grant, UnixTime(u64::try_from(now).unwrap_or_default()));
    for warning in &warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    let token = held.to_string();
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "token": token,
        "revocation_ids": held.revocation_ids().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "warnings": warnings,
    });
    context.output.result(&document, || token.clone())
}
