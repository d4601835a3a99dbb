//! `tam ledger`: usage of principals, and verification of the records.

use super::Context;
use super::key::public;
use crate::amounts::size;
use crate::destination;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Rows;
use crate::user_files::read_file;
use api::{ErrorCode, LedgerAmounts, LedgerRecord, LedgerTotal, LedgerTotals, SCHEMA_VERSION};
use clap::{Args, Subcommand, ValueEnum};
use daemon::ledger::files::{self, FilesError};
use jiff::{Span, Timestamp, tz::TimeZone};
use ledger::Receipt as Signed;
use ledger::receipt::TEXT_LENGTH_MAX;
use serde_json::json;
use std::path::{Path, PathBuf};
use trust::PublicKey;

/// Subcommands of `tam ledger`.
#[derive(Debug, Subcommand)]
pub enum Ledger {
    /// Show what each principal used in each session
    Show(Show),
    /// Verify a ledger, or receipts, with nothing but the node's public key
    Verify(Verify),
    /// Print every record
    Export(Export),
    /// Fetch a principal's own records, signed by the node
    Receipt(Receipt),
}

/// Arguments of `tam ledger show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Count only what was used since this time: 2027-01-01T00:00:00Z, or an age: 24h, 30d
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<u64>,
    /// Count only what was used before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<u64>,
}

/// Arguments of `tam ledger verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Receipts to verify instead of a ledger
    #[arg(value_name = "RECEIPT")]
    receipts: Vec<PathBuf>,
    /// The directory of a ledger, or of a copy; by default that of the node
    #[arg(long, value_name = "DIR", conflicts_with = "receipts")]
    file: Option<PathBuf>,
    /// The node's public key, as `tam show` prints it
    #[arg(long, value_name = "NAME|FILE|ed25519/…")]
    key: String,
}

/// Arguments of `tam ledger export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The format of the output
    #[arg(long, value_enum, default_value = "json")]
    format: Format,
    /// Print only records with this number or a higher one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
}

/// Output format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON, one document a line
    Json,
    /// Comma-separated, with a line of names (RFC 4180)
    Csv,
}

/// Arguments of `tam ledger receipt`.
#[derive(Debug, Args)]
pub struct Receipt {
    /// The principal whose records are fetched
    #[arg(value_name = "NAME|FILE|ed25519/…")]
    principal: String,
    /// First record to fetch, by the principal's own numbering
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Write the receipt to this file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Ledger {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        match self {
            Self::Show(show) => show.run(context),
            Self::Verify(verify) => verify.run(context),
            Self::Export(export) => export.run(context),
            Self::Receipt(receipt) => receipt.run(context),
        }
    }
}

/// Parses a time or an age into Unix seconds.
fn time(text: &str) -> Result<u64, String> {
    time_before(text, Timestamp::now())
        .ok_or_else(|| "a time is 2027-01-01T00:00:00Z, or so long ago: 24h, 30d".to_owned())
}

fn time_before(text: &str, now: Timestamp) -> Option<u64> {
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => {
            let ago: Span = text.parse().ok()?;
            now.to_zoned(TimeZone::UTC).checked_sub(ago).ok()?.timestamp()
        }
    };
    u64::try_from(time.as_second()).ok()
}

impl Show {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let (since, until) = (self.since.unwrap_or(0), self.until.unwrap_or(u64::MAX));
        let totals = context.client()?.ledger_totals(since, until)?;
        context.output.result(&totals, || totals_text(&totals))
    }
}

fn totals_text(totals: &LedgerTotals) -> String {
    if totals.accounts.is_empty() {
        return "nothing was used in this period".to_owned();
    }
    let text = totals.accounts.iter().map(account_text);
    let end = format!("ledger {}, {} frames, chain {}", totals.ledger, totals.frames, totals.chain);
    text.chain([end]).collect::<Vec<_>>().join("\n")
}

/// Formats the usage of one account; amounts of zero are left out.
fn account_text(total: &LedgerTotal) -> String {
    let mut rows = Rows::pairs();
    rows.add(["principal".to_owned(), total.principal.clone()]);
    rows.add(["session".to_owned(), total.session.clone()]);
    let period =
        format!("{} to {}, {} records", when(total.first), when(total.last), total.records);
    rows.add(["used".to_owned(), period]);
    for (name, value) in human(&total.used) {
        rows.add([format!("  {name}"), value]);
    }
    rows.to_string()
}

fn when(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|it| Timestamp::from_second(it).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
}

/// Returns the amounts with units for people; zeros are left out.
fn human(used: &LedgerAmounts) -> Vec<(&'static str, String)> {
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let all = [
        ("packets in", used.packets_in, used.packets_in.to_string()),
        ("bytes in", used.bytes_in, size(used.bytes_in)),
        ("packets out", used.packets_out, used.packets_out.to_string()),
        ("fuel at nic", used.fuel_nic, used.fuel_nic.to_string()),
        ("fuel at kernel", used.fuel_kernel, used.fuel_kernel.to_string()),
        ("time of calls at user, about", used.cpu_user_ns, seconds(used.cpu_user_ns)),
        (
            "memory",
            used.memory_byte_seconds,
            format!("{} for a second", size(used.memory_byte_seconds)),
        ),
        ("modules stored", used.fetches, used.fetches.to_string()),
        ("bytes of these modules", used.fetched_bytes, size(used.fetched_bytes)),
        ("compiling", used.compile_ns, seconds(used.compile_ns)),
    ];
    let some = all.into_iter().filter(|(_, amount, _)| *amount > 0);
    some.map(|(name, _, text)| (name, text)).collect()
}

impl Verify {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let key = public(&self.key)?;
        if !self.receipts.is_empty() {
            return self
                .receipts
                .iter()
                .try_fold(DONE, |_, path| verify_receipt(context, path, &key));
        }
        let directory = match &self.file {
            Some(directory) => directory.clone(),
            None => PathBuf::from(context.client()?.ledger_totals(0, 0)?.directory),
        };
        if !directory.is_dir() {
            let message = format!("there is no directory {}", directory.display());
            return Err(Failure::new(ErrorCode::NotFound, message)
                .help("name the directory of a ledger, or of a copy"));
        }
        let end = files::verify(&directory, &key, |_, _| ()).map_err(|error| failure(&error))?;
        let (frames, chain) = end
            .ledger
            .as_ref()
            .map_or((0, String::new()), |it| (it.frames(), it.chain().to_string()));
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "directory": directory,
            "ledger": end.ledger.as_ref().map(|ledger| ledger.id().to_string()),
            "frames": frames,
            "records": end.records,
            "chain": chain,
            "torn_bytes": end.torn.as_ref().map_or(0, |torn| torn.bytes),
        });
        context.output.result(&document, || {
            let torn = end.torn.as_ref().map_or_else(String::new, |torn| {
                format!(
                    "\nsegment {}: the last {} bytes are no whole batch: they are being written, or were cut off, and count for nobody",
                    torn.segment, torn.bytes
                )
            });
            if frames == 0 {
                return format!("the ledger is empty{torn}");
            }
            let records = end.records;
            format!(
                "{records} records in {frames} frames are as this node has signed them; chain {chain}{torn}"
            )
        })
    }
}

fn failure(error: &FilesError) -> Failure {
    match error {
        FilesError::Io { action, path, source } => {
            Failure::io(format!("cannot {action} {}", path.display()), source)
        }
        FilesError::Damaged { directory, damage } => {
            Failure::failed(format!("the ledger in {} is damaged: {damage}", directory.display()))
        }
        other => Failure::failed(other.to_string()),
    }
}

fn verify_receipt(context: &Context<'_>, path: &Path, key: &PublicKey) -> Outcome {
    let bytes = read_file(path, TEXT_LENGTH_MAX as u64)?;
    let wrong = |error: ledger::ReceiptError| {
        Failure::failed(format!("{}: {error}", path.display()))
            .help("a receipt is as the node gave it, and the key is that node's")
    };
    let receipt = Signed::parse(&String::from_utf8_lossy(&bytes)).map_err(wrong)?;
    let records = receipt.verify(key).map_err(wrong)?;
    let mut totals = ledger::Totals::default();
    for usage in records {
        totals.add(usage).map_err(|error| Failure::new(ErrorCode::Limit, error.to_string()))?;
    }
    let accounts: Vec<_> =
        totals.iter().map(|(account, sum)| LedgerTotal::of(account, sum)).collect();
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "receipt": path,
        "ledger": receipt.ledger().to_string(),
        "node_key": key.to_string(),
        "principal": receipt.principal().to_string(),
        "made": receipt.made().0,
        "first": receipt.next() - receipt.records() as u64,
        "next": receipt.next(),
        "accounts": accounts,
        "records": records.iter().map(|usage| LedgerRecord::of(None, usage)).collect::<Vec<_>>(),
    });
    context.output.result(&document, || {
        let text: Vec<_> = accounts.iter().map(account_text).collect();
        let (first, next) = (receipt.next() - receipt.records() as u64, receipt.next());
        format!(
            "records {first} to {} are as this node has signed them on {}\n{}",
            next - 1,
            when(receipt.made().0),
            text.join("\n")
        )
    })
}

impl Export {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let (mut since, csv) =
            (self.since, self.format == Format::Csv && !context.output.is_json());
        if csv {
            context.output.print(&csv_head())?;
        }
        while !context.output.is_closed() {
            let answer = client.ledger(since)?;
            for record in &answer.records {
                let line = match csv {
                    true => csv_line(record),
                    false => serde_json::to_string(record)
                        .map_err(|error| Failure::failed(format!("writing a record: {error}")))?,
                };
                context.output.print(&line)?;
            }
            since = answer.next;
            if !answer.more {
                break;
            }
        }
        Ok(DONE)
    }
}

const CSV: [&str; 10] = [
    "number",
    "own_number",
    "since",
    "time",
    "clock",
    "principal",
    "session",
    "service",
    "meter",
    "last",
];

fn csv_head() -> String {
    let amounts = LedgerAmounts::default().named().map(|(name, _)| name);
    let readings = amounts.map(|name| format!("reading_{name}"));
    let names = CSV.into_iter().chain(amounts).map(str::to_owned);
    names.chain(readings).collect::<Vec<_>>().join(",")
}

/// Formats a record as CSV without quoting: no field has a comma or a quotation mark, since names
/// are letters, digits, '-' and '_'.
fn csv_line(record: &LedgerRecord) -> String {
    let fields = [
        record.number.map_or_else(String::new, |number| number.to_string()),
        record.own_number.to_string(),
        record.since.to_string(),
        record.time.to_string(),
        record.clock.to_string(),
        record.principal.clone(),
        record.session.clone(),
        record.service.clone().unwrap_or_default(),
        record.meter.clone(),
        record.last.to_string(),
    ];
    let amounts = record.used.named().into_iter().chain(record.reading.named());
    let amounts = amounts.map(|(_, amount)| amount.to_string());
    fields.into_iter().chain(amounts).collect::<Vec<_>>().join(",")
}

impl Receipt {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let principal = public(&self.principal)?;
        let receipt = context.client()?.ledger_receipt(&principal.to_string(), self.from)?;
        if let Some(path) = &self.output {
            destination::write(path, receipt.receipt.as_bytes())?;
        }
        context.output.result(&receipt, || match &self.output {
            None => receipt.receipt.clone(),
            Some(path) => format!(
                "wrote {} records to {}; the next receipt goes on with --from {}",
                receipt.records,
                path.display(),
                receipt.next
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_so_long_ago() {
        let now: Timestamp = "2027-01-02T00:00:00Z".parse().unwrap();
        let at = |text| time_before(text, now);
        assert_eq!(at("2027-01-01T00:00:00Z"), at("24h"));
        assert_eq!(at("1d"), at("24h"));
        assert!(["", "yesterday", "12", "100y"].iter().all(|wrong| at(wrong).is_none()));
    }

    #[test]
    fn a_line_of_csv_has_a_field_for_each_name_and_amounts_are_for_people_elsewhere() {
        let used = LedgerAmounts { packets_in: 7, bytes_in: 1_234_567, ..LedgerAmounts::default() };
        let record = LedgerRecord {
            number: Some(3),
            own_number: 1,
            since: 10,
            time: 20,
            clock: 20,
            principal: "ed25519/00".into(),
            session: "best-effort".into(),
            service: None,
            meter: "00".into(),
            last: true,
            used,
            reading: used,
        };
        let (head, line) = (csv_head(), csv_line(&record));
        assert_eq!(head.split(',').count(), line.split(',').count());
        let fields: Vec<_> = head.split(',').zip(line.split(',')).collect();
        assert!(fields.contains(&("packets_in", "7")) && fields.contains(&("service", "")));
        assert!(fields.contains(&("reading_bytes_in", "1234567")));
        let text = human(&used);
        assert_eq!(text[1], ("bytes in", "1.17MiB".to_owned()));
        assert_eq!(text.len(), 2, "what is nothing is left out");
    }
}
