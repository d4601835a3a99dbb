//! Thread that asks repositories: one after the other, those that are well first, some
//! modules at a time, each within its time.
//!
//! ```text
//! Job ─▶ previous node, then in the order of the node file ─▶ pull, digest, check, signers ─▶ Done
//!            └ who failed rests (oci_client::Mirrors)           └ what each said
//! ```
//!
//! A module that comes is compared with its digest by `repository`; the daemon decides whether it may
//! run.

use crate::completion::Completion;
use crate::config::{NodeFile, Repository, RepositorySource};
use crate::token_file;
use anyhow::{Context, Result};
use api::client::pinned::Pinned;
use module_store::Digest;
use netlink::is_own_address;
use node::wanted::{Fetch, Miss};
use oci_client::http::{Connected, Connecting, Reach, Scheme, Target, Transport};
use oci_client::{
    Connections, Credentials, Encryption, HOPS, Mirrors, Network, Pulled, Registry,
    RepositoryError, Settings, Source, Token, Wanted, pull_one,
};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use trust::{PublicKey, Signer};

/// Longest time of a whole fetch: shorter than clients wait.
pub(crate) const FETCH_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest time of it at one repository.
const REPOSITORY_TIME_MAX: Duration = Duration::from_secs(10);
/// Tries of one request: the next repository is asked sooner than one that is down comes back.
const ATTEMPTS_MAX: u32 = 2;
/// Largest file of a token, in bytes: it fits a request's head.
const TOKEN_FILE_LENGTH_MAX: u64 = 16 << 10;
/// A node has its modules by their digests, under any name.
const ANY_NAME: &str = "module";

const _: () = assert!(REPOSITORY_TIME_MAX.as_secs() * 2 < FETCH_TIME_MAX.as_secs());

/// Module that is to be fetched.
pub(crate) struct Job {
    pub(crate) fetch: Fetch<Digest>,
    /// Node whose packet named the module.
    pub(crate) previous: Option<PublicKey>,
}

/// Module that has come.
pub(crate) struct FetchedModule {
    pub(crate) pulled: Pulled,
    /// Signers that the node trusts.
    pub(crate) signers: BTreeSet<Signer>,
    /// Repository that had it.
    pub(crate) from: String,
}

/// Reason for a module not having come.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) miss: Miss,
    /// Answers of the repositories, in words.
    pub(crate) text: String,
}

/// Fetch that has ended.
pub(crate) struct Fetched {
    pub(crate) fetch: Fetch<Digest>,
    pub(crate) came: Result<FetchedModule, Failure>,
    pub(crate) took: Duration,
}

/// The thread, as long as this lives.
pub(crate) struct Fetcher {
    jobs: UnboundedSender<Job>,
}

impl Fetcher {
    /// Starts the thread, if there are repositories. `config` is the node file's path.
    pub(crate) fn begin(
        file: &NodeFile,
        config: &Path,
        done: Completion<Fetched>,
    ) -> Result<Option<Self>> {
        if file.repositories.is_empty() {
            return Ok(None);
        }
        let asking = Arc::new(Asking::new(file, config)?);
        let (jobs, to_do) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || {
            runtime.block_on(work(asking, to_do, done));
            // Fetches under way end with it: their requesters are gone.
            runtime.shutdown_background();
        };
        std::thread::Builder::new()
            .name("fetch".to_owned())
            .spawn(work)
            .context("starting the thread that fetches modules")?;
        Ok(Some(Self { jobs }))
    }

    /// Creates one without a thread: the test takes its jobs.
    #[cfg(test)]
    pub(super) fn pair() -> (Self, UnboundedReceiver<Job>) {
        let (jobs, to_do) = unbounded_channel();
        (Self { jobs }, to_do)
    }

    /// Fetches a module; the completion gets it.
    pub(crate) fn fetch(&self, job: Job) {
        // The thread ends after this does.
        let _ = self.jobs.send(job);
    }
}

async fn work(asking: Arc<Asking>, mut jobs: UnboundedReceiver<Job>, done: Completion<Fetched>) {
    while let Some(job) = jobs.recv().await {
        let (asking, done) = (Arc::clone(&asking), done.clone());
        tokio::spawn(async move {
            let begin = Instant::now();
            let came = asking.fetch(&job).await;
            let fetched = Fetched { fetch: job.fetch, came, took: begin.elapsed() };
            // A send fails only if the daemon has ended.
            done.send(fetched);
        });
    }
}

/// Fetches one module, and waits for it: before there is a daemon.
pub(crate) fn fetch_now(
    file: &NodeFile,
    config: &Path,
    job: &Job,
) -> Result<FetchedModule, Failure> {
    let failed = |error: anyhow::Error| Failure { miss: Miss::Failed, text: format!("{error:#}") };
    let asking = Asking::new(file, config).map_err(failed)?;
    // Runs on a thread of its own, since the caller may be on one of a runtime.
    let fetched = std::thread::scope(|scope| {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| failed(error.into()))?;
            runtime.block_on(asking.fetch(job))
        };
        scope.spawn(work).join()
    });
    fetched.unwrap_or_else(|_| Err(failed(anyhow::anyhow!("its thread has ended"))))
}

/// Repositories of a node.
struct Asking {
    repositories: Mutex<Mirrors<Known>>,
    transport: Arc<dyn Transport>,
    /// Directory of secret files that are named by a relative path.
    directory: PathBuf,
    signers: BTreeSet<Signer>,
    begin: Instant,
}

/// Repository, and its open connections.
#[derive(Clone)]
struct Known {
    repository: Repository,
    connections: Connections,
}

impl Asking {
    fn new(file: &NodeFile, config: &Path) -> Result<Self> {
        let known = file.repositories.iter().map(|repository| {
            let connections = Connections::default();
            Known { repository: repository.clone(), connections }
        });
        Ok(Self {
            repositories: Mutex::new(Mirrors::new(known)),
            transport: Arc::new(HttpClients::to(&file.repositories)?),
            directory: config.parent().map(Path::to_owned).unwrap_or_default(),
            signers: file.trust.signers.clone(),
            begin: Instant::now(),
        })
    }

    async fn fetch(&self, job: &Job) -> Result<FetchedModule, Failure> {
        let asked = Mutex::new(Vec::new());
        let fetching = tokio::time::timeout(FETCH_TIME_MAX, self.ask_all(job, &asked)).await;
        if let Ok(Some(come)) = fetching {
            return Ok(come);
        }
        let said = std::mem::take(&mut *lock(&asked));
        Err(self.failure(said, fetching.is_err()))
    }

    /// Asks one after the other; what they said is in `asked`.
    async fn ask_all(
        &self,
        job: &Job,
        asked: &Mutex<Vec<RepositoryAnswer>>,
    ) -> Option<FetchedModule> {
        for (number, known) in self.order(job.previous) {
            let name = known.repository.name();
            let pulled = match self.source(&known, job) {
                Ok((source, name)) => {
                    let wanted = Wanted::Module { name, digest: job.fetch.digest };
                    let within = REPOSITORY_TIME_MAX;
                    let pull = pull_one(&self.transport, &source, &wanted, None);
                    let pulled = tokio::time::timeout(within, pull).await;
                    pulled.unwrap_or(Err(RepositoryError::TookTooLong(within)))
                }
                Err(problem) => Err(problem),
            };
            let now = self.begin.elapsed();
            match pulled {
                Ok(pulled) => {
                    lock(&self.repositories).answered(number);
                    let signers = pulled.verified(&self.signers).signers;
                    return Some(FetchedModule { pulled, signers, from: name });
                }
                Err(problem) => {
                    let miss = miss_of(&problem);
                    match miss {
                        Miss::NotThere => lock(&self.repositories).answered(number),
                        Miss::Failed => lock(&self.repositories).failed(number, now),
                    }
                    lock(asked).push(RepositoryAnswer { miss, text: format!("{name}: {problem}") });
                }
            }
        }
        None
    }

    /// Returns the repositories in the order of asking: the node that sent us here first, as it was
    /// there just now.
    fn order(&self, previous: Option<PublicKey>) -> Vec<(usize, Known)> {
        let repositories = lock(&self.repositories);
        let is_previous = |number: &usize| {
            let known = repositories.get(*number);
            previous.is_some() && known.and_then(|it| it.repository.key()) == previous
        };
        let first = (0..repositories.len()).find(is_previous);
        let rest = repositories.order(self.begin.elapsed());
        let rest = rest.into_iter().filter(|number| Some(*number) != first);
        let of = |number: usize| Some((number, repositories.get(number)?.clone()));
        first.into_iter().chain(rest).filter_map(of).collect()
    }

    /// Returns the client of a repository, and the name to ask for.
    fn source(&self, known: &Known, job: &Job) -> Result<(Source, String), RepositoryError> {
        let Known { repository, connections } = known;
        let hops = job.fetch.hops.next().map_or(0, |hops| hops.get());
        let token = repository.token.as_ref().map(|file| token_in(&self.directory.join(file)));
        let mut settings = Settings {
            token: token.transpose()?,
            headers: [(HOPS, u16::from(hops).into())].into_iter().collect(),
            time_max: REPOSITORY_TIME_MAX,
            attempts_max: ATTEMPTS_MAX,
            connections: connections.clone(),
            ..Settings::default()
        };
        let (registry, name) = match &repository.source {
            RepositorySource::Registry { registry, name, plain_http, auth_file } => {
                if *plain_http {
                    settings.encryption = Encryption::Never;
                }
                if let Some(file) = auth_file {
                    let file = self.directory.join(file);
                    settings.credentials = Credentials::of_file(&file, registry)?;
                }
                (registry.clone(), name.clone())
            }
            RepositorySource::Node { address, .. } => {
                settings.encryption = Encryption::Always;
                (address.clone(), ANY_NAME.to_owned())
            }
        };
        Ok((Source { registry, prefix: String::new(), settings }, name))
    }

    fn failure(&self, said: Vec<RepositoryAnswer>, is_late: bool) -> Failure {
        // One that rests was not asked, and may have it.
        let is_complete = !is_late && said.len() == lock(&self.repositories).len();
        let is_known = is_complete && said.iter().all(|it| it.miss == Miss::NotThere);
        let mut texts: Vec<String> = said.into_iter().map(|it| it.text).collect();
        if is_late {
            texts.push(format!(
                "it took more than {} s, which is the limit",
                FETCH_TIME_MAX.as_secs()
            ));
        } else if !is_complete {
            texts.push("the others failed a moment ago and are not asked yet".to_owned());
        }
        let miss = if is_known { Miss::NotThere } else { Miss::Failed };
        Failure { miss, text: texts.join("; ") }
    }
}

/// Answer of a repository.
struct RepositoryAnswer {
    miss: Miss,
    text: String,
}

/// Classifies the error of a repository: it lacks the module, or it failed. Bytes that are no
/// module count as a lack, since no repository has other bytes of that digest.
const fn miss_of(problem: &RepositoryError) -> Miss {
    match problem {
        RepositoryError::NotFound { .. } | RepositoryError::NotAModule { .. } => Miss::NotThere,
        _ => Miss::Failed,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the token in a file; nothing of it is ever logged.
fn token_in(path: &Path) -> Result<Token, RepositoryError> {
    let wrong =
        |why: String| RepositoryError::Credentials { path: path.display().to_string(), why };
    let text =
        token_file::read(path, TOKEN_FILE_LENGTH_MAX).map_err(|error| wrong(error.to_string()))?;
    Token::new(&text).ok_or_else(|| wrong("it is no token".to_owned()))
}

/// The network: nodes by their keys, everybody else by the certificates that the system trusts.
#[derive(Debug)]
struct HttpClients {
    network: Network,
    nodes: BTreeMap<(String, u16), Pinned>,
}

impl HttpClients {
    fn to(repositories: &[Repository]) -> Result<Self> {
        let mut nodes = BTreeMap::new();
        for repository in repositories {
            if let RepositorySource::Node { address, key } = &repository.source {
                let Registry { host, port } = address.clone();
                nodes.insert((host, port.unwrap_or_default()), Pinned::new(*key)?);
            }
        }
        Ok(Self { network: Network::new(is_own_address), nodes })
    }
}

impl Transport for HttpClients {
    fn connect<'a>(&'a self, target: &'a Target, reach: Reach) -> Connecting<'a> {
        let node = self.nodes.get(&(target.host.clone(), target.port));
        let Some(node) = node.filter(|_| target.scheme == Scheme::Https) else {
            return self.network.connect(target, reach);
        };
        Box::pin(async move {
            // `reach` holds for nodes, too: a registry must not redirect to a node on this machine.
            let (stream, peer) = self.network.open(target, reach).await?;
            Ok(Connected { stream: Box::new(node.connect(stream).await?), peer })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::{SecretKey, Seed};

    fn key(number: u8) -> PublicKey {
        SecretKey::from_seed(&Seed::from([number; 32])).public()
    }

    /// A registry, then two nodes.
    fn asking(folder: &Path) -> Asking {
        let node = |number: u8| {
            let key = key(number);
            format!(
                "[[repository]]\nnode = \"10.0.0.{number}:7443\"\nkey = \"{key}\"\ntoken = \"t\"\n"
            )
        };
        let registry = "[[repository]]\nregistry = \"registry.test/modules\"\n";
        let text = format!("name = \"r1\"\n{registry}{}{}", node(1), node(2));
        let file = NodeFile::parse(&text, "node.toml").unwrap();
        Asking::new(&file, &folder.join("node.toml")).unwrap()
    }

    fn numbers(asking: &Asking, previous: Option<u8>) -> Vec<usize> {
        asking.order(previous.map(key)).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn the_node_that_a_packet_came_from_is_asked_first_also_after_a_failure() {
        let asking = asking(Path::new(""));
        assert_eq!(numbers(&asking, None), [0, 1, 2]);
        assert_eq!(numbers(&asking, Some(2)), [2, 0, 1]);
        assert_eq!(numbers(&asking, Some(9)), [0, 1, 2], "a stranger is asked for nothing");
        lock(&asking.repositories).failed(2, asking.begin.elapsed());
        assert_eq!(numbers(&asking, None), [0, 1]);
        assert_eq!(numbers(&asking, Some(2)), [2, 0, 1]);
    }

    #[test]
    fn a_miss_is_certain_only_when_every_repository_says_so() {
        let asking = asking(Path::new(""));
        let said = |misses: &[Miss]| -> Vec<RepositoryAnswer> {
            misses
                .iter()
                .map(|miss| RepositoryAnswer { miss: *miss, text: "said".to_owned() })
                .collect()
        };
        use Miss::{Failed, NotThere};
        for (misses, is_late, miss) in [
            (&[NotThere, NotThere, NotThere][..], false, NotThere),
            (&[NotThere, Failed, NotThere], false, Failed),
            (&[NotThere, NotThere], false, Failed),
            (&[NotThere, NotThere, NotThere], true, Failed),
            (&[], false, Failed),
        ] {
            assert_eq!(asking.failure(said(misses), is_late).miss, miss, "{misses:?}");
        }
    }

    #[test]
    fn a_request_says_how_many_nodes_are_left_and_shows_the_token_of_its_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let asking = asking(folder.path());
        let job = |hops| Job {
            fetch: Fetch { digest: Digest::of(b"x"), hops: node::wanted::Hops::new(hops) },
            previous: None,
        };
        let all = asking.order(None);
        let source = |number: usize, hops| asking.source(&all[number].1, &job(hops));
        let missing = source(1, 4).unwrap_err().to_string();
        assert!(missing.contains("No such file") && missing.contains("/t"), "{missing}");
        for secret in ["two\nwords", "", &"s".repeat(20_000)] {
            std::fs::write(folder.path().join("t"), secret).unwrap();
            let wrong = source(1, 4).unwrap_err().to_string();
            assert!(secret.is_empty() || !wrong.contains(secret), "{wrong}");
        }
        std::fs::write(folder.path().join("t"), "the-secret\n").unwrap();
        let (source_of_node, name) = source(1, 4).unwrap();
        assert_eq!(
            (name.as_str(), source_of_node.settings.encryption),
            ("module", Encryption::Always)
        );
        assert_eq!(source_of_node.settings.headers[HOPS], "3");
        assert!(!format!("{source_of_node:?}").contains("the-secret"));
        let (registry, name) = source(0, 1).unwrap();
        assert_eq!((name.as_str(), registry.settings.token), ("modules", None));
        assert_eq!(registry.settings.headers[HOPS], "0");
    }
}
