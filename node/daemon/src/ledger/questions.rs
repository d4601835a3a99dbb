//! Answers of the API from the ledger. The files are read beside the daemon's task, as far as they were
//! on the disk when it was asked.

use super::files::{self, FilesError};
use super::{Billing, wall_clock_ms};
use crate::answer::{error, failed};
use crate::request::LedgerQuestion;
use api::{
    ErrorCode, ErrorInfo, LedgerReceipt, LedgerRecord, LedgerRecords, LedgerTotal, LedgerTotals,
    SCHEMA_VERSION,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use trust::{SecretKey, UnixTime};

/// Largest number of records of one answer: some 600 KB.
const ANSWER_RECORDS_MAX: usize = 1000;

/// Answers a question, beside the daemon's task. `key` signs receipts.
pub(crate) fn answer(billing: &Billing, key: &Arc<SecretKey>, question: LedgerQuestion) {
    let (directory, key) = (billing.directory.clone(), Arc::clone(key));
    let Some(known) = billing.known.clone() else {
        let message = match &billing.problem {
            Some(problem) => format!("the ledger cannot be read: {problem}"),
            None => "the ledger is being opened; try again in a moment".to_owned(),
        };
        return question.refuse(error(ErrorCode::Failed, message, None));
    };
    let made = UnixTime(wall_clock_ms() / 1000);
    tokio::task::spawn_blocking(move || {
        let schema_version = SCHEMA_VERSION;
        match question {
            LedgerQuestion::Records(since, reply) => {
                let read = records(&directory, since, known.frames);
                reply.answer(read.map_err(|problem| refusal(&problem)));
            }
            LedgerQuestion::Totals(period, reply) => {
                let totals = files::totals(&directory, known.frames, period);
                let answer = totals.map(|totals| LedgerTotals {
                    schema_version,
                    node_key: key.public().to_string(),
                    directory: directory.display().to_string(),
                    ledger: known.id.to_string(),
                    frames: known.frames,
                    chain: known.chain.to_string(),
                    accounts: totals.iter().map(|(a, sum)| LedgerTotal::of(a, sum)).collect(),
                });
                reply.answer(answer.map_err(|problem| refusal(&problem)));
            }
            LedgerQuestion::Receipt(principal, from, reply) => {
                let whose = (&*principal, from);
                let receipt = files::receipt(&directory, known.frames, &key, known.id, made, whose);
                let answer = receipt.map(|receipt| LedgerReceipt {
                    schema_version,
                    records: receipt.records() as u64,
                    next: receipt.next(),
                    receipt: receipt.to_text(),
                });
                reply.answer(answer.map_err(|problem| refusal(&problem)));
            }
        }
    });
}

fn records(
    directory: &std::path::Path,
    since: u64,
    until: u64,
) -> Result<LedgerRecords, FilesError> {
    let (mut records, mut next, mut more) = (Vec::new(), until.max(since), false);
    files::scan(directory, since, until, |number, usage| {
        if records.len() == ANSWER_RECORDS_MAX {
            (next, more) = (number, true);
            return ControlFlow::Break(());
        }
        records.push(LedgerRecord::of(Some(number), &usage));
        ControlFlow::Continue(())
    })?;
    Ok(LedgerRecords { schema_version: SCHEMA_VERSION, records, next, more })
}

fn refusal(problem: &FilesError) -> ErrorInfo {
    let code = match problem {
        FilesError::Receipt(ledger::ReceiptError::Empty) => ErrorCode::NotFound,
        FilesError::Overflow(_) => ErrorCode::Limit,
        _ => return failed(problem),
    };
    error(code, problem.to_string(), None)
}
