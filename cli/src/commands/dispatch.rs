//! Dispatch of a command line to the command that it names. Parses no arguments.

use super::Context;
use crate::arguments::{Arguments, Command};
use crate::failure::Outcome;
use crate::output::Output;

/// Runs the command; returns its exit status.
pub fn run(arguments: Arguments, output: &Output) -> Outcome {
    let context = &Context { output, node: arguments.node, token: arguments.token };
    match arguments.command {
        Command::Demo(demo) => demo.run(context),
        Command::Doctor(doctor) => doctor.run(context),
        Command::Node(node) => node.run(context),
        Command::Lab(lab) => lab.run(context),
        Command::Run(run) => run.run(context),
        Command::New(new) => new.run(context),
        Command::Build(build) => build.run(context),
        Command::Dev(dev) => dev.run(context),
        Command::Check(check) => check.run(context),
        Command::Key(key) => key.run(context),
        Command::Token(token) => token.run(context),
        Command::Sign(sign) => sign.run(context),
        Command::Verify(verify) => verify.run(context),
        Command::Push(push) => push.run(context),
        Command::Pull(pull) => pull.run(context),
        Command::Ping(ping) => ping.run(context),
        Command::Apply(apply) => apply.run(context),
        Command::Diff(diff) => diff.run(context),
        Command::Confirm(confirm) => confirm.run(context),
        Command::Rollback(rollback) => rollback.run(context),
        Command::Backup(backup) => backup.run(context),
        Command::Restore(restore) => restore.run(context),
        Command::Deploy(deploy) => deploy.run(context),
        Command::List(list) => list.run(context),
        Command::Show(show) => show.run(context),
        Command::Remove(remove) => remove.run(context),
        Command::Move(r#move) => r#move.run(context),
        Command::Session(session) => session.run(context),
        Command::Rule(rule) => rule.run(context),
        Command::Stats(stats) => stats.run(context),
        Command::Ledger(ledger) => ledger.run(context),
        Command::Events(events) => events.run(context),
        Command::Why(why) => why.run(context),
        Command::Top(top) => top.run(context),
        Command::Capture(capture) => capture.run(context),
        Command::Bench(bench) => bench.run(context),
        Command::Reproduce(reproduce) => reproduce.run(context),
        Command::Completions(completions) => completions.run(context),
        Command::Man(man) => man.run(context),
        Command::Cell(cell) => cell.run(),
        Command::CompileWorker(worker) => worker.run(),
        Command::Codec(codec) => codec.run(),
    }
}
