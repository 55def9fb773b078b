//! `unlade fn`: functions, and what they need on their host.

mod client;
mod explain;
mod init;
mod logs;
mod parent;
mod sandbox;
mod serve;
mod store;
mod top;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

const LONG: &str = "\
Runs AWS-Lambda-style Python functions that use boto3, unmodified: SDK, TLS and TCP are in one I/O \
worker of the host; inputs are fetched while an instance is restored, outputs are written back when \
it has been released. Other services than S3 need an endpoint and a right ([services] in fn.toml, role in function.toml), and a write that is lost fails the invocation by \
default; `unlade fn serve --help` has the keys that change that (mode, writes). Callers use the Lambda API: `aws lambda invoke`, boto3, curl.";

const EXAMPLE: &str = "\
To begin:
  unlade fn serve &                                  # gateway, worker, built-in S3 store
  unlade fn deploy ./thumbnail --handler app.handler
  eval \"$(unlade fn env)\"                            # endpoints and keys for aws and boto3
  aws s3 mb s3://photos && aws s3 cp cat.jpg s3://photos/
  aws lambda invoke --function-name thumbnail --payload file://event.json out.json";

/// Functions whose object storage is done by their host
#[derive(Debug, Args)]
#[command(long_about = LONG, after_long_help = EXAMPLE)]
pub struct FnArgs {
    #[command(subcommand)]
    command: FnCommand,
}

#[derive(Debug, Subcommand)]
enum FnCommand {
    /// Serve functions
    #[command(long_about = serve::LONG, after_long_help = serve::HELP)]
    Serve(serve::ServeArgs),
    /// Deploy a directory as a function
    #[command(after_long_help = client::DEPLOY_HELP)]
    Deploy(client::DeployArgs),
    /// List the functions of a gateway
    List(client::GatewayArgs),
    /// Invoke a function, and print its result
    Invoke(client::InvokeArgs),
    /// Print the log of a function
    #[command(after_long_help = logs::HELP)]
    Logs(logs::LogsArgs),
    /// Show what the functions of a gateway do, every second
    #[command(after_long_help = top::HELP)]
    Top(top::TopArgs),
    /// Remove a function
    Remove(client::RemoveArgs),
    /// Print what aws and boto3 need to know, as shell text
    Env(client::EnvArgs),
    /// Say whether a function may do something, and which statement decides
    #[command(long_about = explain::LONG, after_long_help = explain::HELP)]
    Explain(explain::ExplainArgs),
    /// Run the I/O worker of a tenant
    #[command(long_about = worker::LONG, after_long_help = worker::HELP)]
    Worker(worker::WorkerArgs),
    /// Serve a directory as an S3 store
    Store(store::StoreArgs),
    /// Make the sandbox of a function: for a gateway to start, not for people
    #[command(hide = true)]
    Sandbox(sandbox::SandboxArgs),
    /// Be the first process of a sandbox: for a sandbox to start, not for people
    #[command(hide = true)]
    Init(init::InitArgs),
}

/// Runs `unlade fn`.
///
/// # Errors
/// The configuration, or what stopped it.
pub fn run(args: FnArgs) -> Result<ExitCode> {
    match args.command {
        FnCommand::Serve(args) => return serve::run(args),
        FnCommand::Deploy(args) => client::deploy(&args)?,
        FnCommand::List(args) => client::list(&args)?,
        FnCommand::Invoke(args) => return client::invoke(&args),
        FnCommand::Logs(args) => logs::run(&args)?,
        FnCommand::Top(args) => top::run(&args)?,
        FnCommand::Remove(args) => client::remove(&args)?,
        FnCommand::Env(args) => client::env(&args)?,
        FnCommand::Explain(args) => return explain::run(&args),
        FnCommand::Worker(args) => return worker::run(&args),
        FnCommand::Store(args) => return store::run(args),
        FnCommand::Sandbox(args) => sandbox::run(&args)?,
        FnCommand::Init(args) => return init::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}
