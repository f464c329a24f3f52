//! A real server of objects in the process, which speaks as S3 does: s3s over a folder.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};

/// Name of whom it answers.
pub const KEY: &str = "key";
/// The word that proves it.
pub const SECRET: &str = "opensesame";

/// A server with an empty bucket `bucket`. It ends with its value.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    root: PathBuf,
    _dir: TempDir,
    _runtime: Runtime,
}

impl Server {
    /// One that knows whom it answers.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start() -> Self {
        Self::start_in(folder(), true)
    }

    /// One that answers everybody, as a web server does.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn open_to_all() -> Self {
        Self::start_in(folder(), false)
    }

    /// One whose objects are files in a folder.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_in(dir: TempDir, private: bool) -> Self {
        let root = dir.path().to_owned();
        std::fs::create_dir_all(root.join("bucket")).expect("there is room for a folder");
        let mut service = S3ServiceBuilder::new(FileSystem::new(&root).expect("the folder is there"));
        if private {
            service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let service = service.build();
        let runtime = Runtime::new().expect("there are threads for it");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        runtime.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    // A client that went away is its own business.
                    let _ =
                        Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(connection), service).await;
                });
            }
        });
        Self { address, root, _dir: dir, _runtime: runtime }
    }

    /// The folder of the bucket's objects.
    #[must_use]
    pub fn bucket(&self) -> PathBuf {
        self.root.join("bucket")
    }

    /// Variables of somebody who may do everything, and reaches the server at that address.
    #[must_use]
    pub fn variables(&self, address: SocketAddr) -> Vec<(String, String)> {
        variables(address, SECRET)
    }
}

/// Variables of somebody who knows that word.
#[must_use]
pub fn variables(address: SocketAddr, secret: &str) -> Vec<(String, String)> {
    let endpoint = format!("http://{address}");
    let given = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ];
    given.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is room for a folder")
}
