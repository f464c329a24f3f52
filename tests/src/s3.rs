//! A real object server in this process, with the protocol of S3: s3s over a folder.

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    access::{S3Access, S3AccessContext},
    auth::SimpleAuth,
    service::S3ServiceBuilder,
};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};

/// Access key of the known user.
pub const KEY: &str = "key";
/// Secret key of the known user.
pub const SECRET: &str = "opensesame";

/// A server with an empty bucket `bucket`. It ends with its value.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    root: PathBuf,
    full: Arc<AtomicBool>,
    _dir: TempDir,
    _runtime: Runtime,
}

/// Access of the known user; operations that take space are refused while the server is full.
struct Room(Arc<AtomicBool>);

impl S3Access for Room {
    fn check<'a, 'b, 'c, 'd>(
        &'a self,
        request: &'b mut S3AccessContext<'c>,
    ) -> Pin<Box<dyn Future<Output = S3Result<()>> + Send + 'd>>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        let takes_room = ["PutObject", "CreateMultipartUpload", "UploadPart"].contains(&request.s3_op().name());
        let refusal = match request.credentials() {
            None => Some(S3ErrorCode::AccessDenied),
            Some(_) if takes_room && self.0.load(Relaxed) => S3ErrorCode::from_bytes(b"QuotaExceeded"),
            Some(_) => None,
        };
        Box::pin(async move {
            let Some(code) = refusal else { return Ok(()) };
            let mut error = S3Error::with_message(code, "the bucket takes no more");
            // As storage clusters answer. Clients do not retry, as they do after server errors.
            error.set_status_code(403.try_into().expect("it is a status"));
            Err(error)
        })
    }
}

impl Server {
    /// A server for the known user only.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start() -> Self {
        Self::start_in(folder(), true, Ipv4Addr::LOCALHOST)
    }

    /// The same at another address of this machine.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_at(address: Ipv4Addr) -> Self {
        Self::start_in(folder(), true, address)
    }

    /// A server for everybody, such as a web server.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn open_to_all() -> Self {
        Self::start_in(folder(), false, Ipv4Addr::LOCALHOST)
    }

    /// A server whose objects are files in a folder.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_in(dir: TempDir, private: bool, address: Ipv4Addr) -> Self {
        let root = dir.path().to_owned();
        std::fs::create_dir_all(root.join("bucket")).expect("there is room for a folder");
        let mut service = S3ServiceBuilder::new(FileSystem::new(&root).expect("the folder is there"));
        let full = Arc::new(AtomicBool::new(false));
        if private {
            service.set_auth(SimpleAuth::from_single(KEY, SECRET));
            service.set_access(Room(Arc::clone(&full)));
        }
        let service = service.build();
        let runtime = Runtime::new().expect("there are threads for it");
        let listener = runtime.block_on(TcpListener::bind((address, 0))).expect("a port is free");
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
        Self { address, root, full, _dir: dir, _runtime: runtime }
    }

    /// Sets whether the known user finds the server full.
    pub fn fill(&self, full: bool) {
        self.full.store(full, Relaxed);
    }

    /// The folder of the bucket's objects.
    #[must_use]
    pub fn bucket(&self) -> PathBuf {
        self.root.join("bucket")
    }

    /// Variables of a user who may do everything, with the server at that address.
    #[must_use]
    pub fn variables(&self, address: SocketAddr) -> Vec<(String, String)> {
        variables(address, SECRET)
    }
}

/// Variables of a user with this secret key.
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
