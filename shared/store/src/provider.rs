//! The place of a store: a folder, or the URL of a store of objects with options from the environment.

use std::{
    fs,
    path::{Path as FilePath, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    http::HttpBuilder,
    local::LocalFileSystem,
    path::Path,
};
use reqwest::Url;

use crate::StoreError;

/// Time limits of a request: to connect, without a sign of life, and as a whole. Variables may override them.
const TIME_OUTS: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "5 seconds"),
    (ClientConfigKey::ReadTimeout, "60 seconds"),
    (ClientConfigKey::Timeout, "180 seconds"),
];

/// An opened place.
pub struct OpenStore {
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// The store's path among them.
    pub root: Path,
    /// Its kind.
    pub kind: Provider,
    /// Its name for people, without credentials.
    pub shown: String,
}

/// A kind of store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// A folder.
    Folder(PathBuf),
    /// S3 and servers with its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server, for reading only.
    Http,
}

impl Provider {
    /// The variables that give credentials.
    pub fn credentials(&self) -> &'static str {
        match self {
            Self::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            Self::Google => "GOOGLE_APPLICATION_CREDENTIALS",
            Self::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            Self::Folder(_) | Self::Http => "the owners and modes of its files",
        }
    }
}

/// Opens a place with the variables of an environment.
pub fn open(place: &str, variables: &[(String, String)]) -> Result<OpenStore, StoreError> {
    if !place.contains("://") {
        return open_folder(place, FilePath::new(place));
    }
    let url = Url::parse(place).map_err(|e| no_place(place, e))?;
    let shown = without_credentials(&url);
    let (scheme, root) =
        ObjectStoreScheme::parse(&url).map_err(|_| no_place(&shown, "stores of this kind are not known"))?;
    if scheme == ObjectStoreScheme::Local {
        let folder = url.to_file_path().map_err(|()| no_place(&shown, "it is no path of this host"))?;
        return open_folder(&shown, &folder);
    }
    // Another part of the program may have installed one first, and it does the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (objects, kind) = open_remote(scheme, &url, variables).map_err(|reason| no_place(&shown, reason))?;
    Ok(OpenStore { objects, root, kind, shown })
}

fn open_folder(shown: &str, folder: &FilePath) -> Result<OpenStore, StoreError> {
    if shown.is_empty() {
        return Err(no_place(shown, "it is empty"));
    }
    fs::create_dir_all(folder).map_err(|e| no_place(shown, e))?;
    let folder = folder.canonicalize().map_err(|e| no_place(shown, e))?;
    // Objects that were reported as written must survive a loss of power: nobody sends them a second time.
    let objects = LocalFileSystem::new_with_prefix(&folder).map_err(|e| no_place(shown, e))?.with_fsync(true);
    Ok(OpenStore {
        objects: Arc::new(objects),
        root: Path::default(),
        shown: folder.display().to_string(),
        kind: Provider::Folder(folder),
    })
}

type Opened = (Arc<dyn ObjectStore>, Provider);

fn open_remote(scheme: ObjectStoreScheme, url: &Url, variables: &[(String, String)]) -> Result<Opened, String> {
    let retries = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.,
        },
        max_retries: 6,
        retry_timeout: Duration::from_secs(120),
    };
    let words = |e: object_store::Error| e.to_string();
    match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let options = options(variables, "AWS_", AmazonS3ConfigKey::Client);
            plain_http_is_meant(&options)?;
            let builder = AmazonS3Builder::new().with_url(url.as_str()).with_retry(retries);
            let builder = options.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Ok((Arc::new(builder.build().map_err(words)?), Provider::S3))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let options = options(variables, "GOOGLE_", GoogleConfigKey::Client);
            let builder = GoogleCloudStorageBuilder::new().with_url(url.as_str()).with_retry(retries);
            let builder = options.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Ok((Arc::new(builder.build().map_err(words)?), Provider::Google))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let options = options(variables, "AZURE_", AzureConfigKey::Client);
            let builder = MicrosoftAzureBuilder::new().with_url(url.as_str()).with_retry(retries);
            let builder = options.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
            Ok((Arc::new(builder.build().map_err(words)?), Provider::Azure))
        }
        ObjectStoreScheme::Http => {
            let client =
                TIME_OUTS.into_iter().fold(ClientOptions::new(), |client, (key, value)| client.with_config(key, value));
            let builder = HttpBuilder::new().with_url(url.origin().ascii_serialization()).with_retry(retries);
            let builder = builder.with_client_options(client.with_allow_http(true));
            Ok((Arc::new(builder.build().map_err(words)?), Provider::Http))
        }
        _ => Err("stores of this kind are not known".into()),
    }
}

/// Options of a store: ours, then those variables whose names have the prefix.
fn options<K: FromStr>(
    variables: &[(String, String)],
    prefix: &str,
    client: fn(ClientConfigKey) -> K,
) -> Vec<(K, String)> {
    let ours = TIME_OUTS.into_iter().map(|(key, value)| (client(key), value.to_owned()));
    let given = variables.iter().filter(|(name, _)| name.starts_with(prefix));
    // A variable that is no option of the store belongs to somebody else.
    let known = given.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.clone())));
    ours.chain(known).collect()
}

/// The client's own error for a server without TLS names no way out.
fn plain_http_is_meant(options: &[(AmazonS3ConfigKey, String)]) -> Result<(), String> {
    let of =
        |wanted: AmazonS3ConfigKey| options.iter().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str());
    let endpoint = of(AmazonS3ConfigKey::S3Endpoint).or_else(|| of(AmazonS3ConfigKey::Endpoint));
    let allowed = of(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    match endpoint {
        Some(endpoint) if endpoint.starts_with("http://") && allowed.is_none() => {
            Err(format!("AWS_ENDPOINT {endpoint} is without TLS; set AWS_ALLOW_HTTP=true if that is meant"))
        }
        _ => Ok(()),
    }
}

/// A URL without user, password, and the part behind the path, where signatures stand.
fn without_credentials(url: &Url) -> String {
    let mut url = url.clone();
    // In a URL of Azure, the container stands where other URLs have a user.
    if !matches!(url.scheme(), "az" | "adl" | "azure" | "abfs" | "abfss") {
        let _ = url.set_username("");
    }
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

fn no_place(place: &str, reason: impl ToString) -> StoreError {
    StoreError::Address { place: place.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_with(place: &str, variables: &[(&str, &str)]) -> Result<OpenStore, StoreError> {
        let variables: Vec<_> = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        open(place, &variables)
    }

    #[test]
    fn every_kind_of_place_is_opened_by_its_url() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap().join("a/b");
        for place in [folder.display().to_string(), format!("file://{}", folder.display())] {
            assert_eq!(open_with(&place, &[]).unwrap().kind, Provider::Folder(folder.clone()));
        }
        assert!(folder.is_dir());

        let account = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")];
        let google = [("GOOGLE_SKIP_SIGNATURE", "true")];
        for (place, variables, kind, root) in [
            ("s3://bucket/runs/x", &[][..], Provider::S3, "runs/x"),
            ("s3://bucket", &[], Provider::S3, ""),
            ("gs://bucket/runs", &google, Provider::Google, "runs"),
            ("az://container/runs", &account, Provider::Azure, "runs"),
            ("https://host/runs", &[], Provider::Http, "runs"),
        ] {
            let opened = open_with(place, variables).unwrap_or_else(|e| panic!("{place}: {e}"));
            assert_eq!((opened.kind, opened.root.as_ref(), opened.shown.as_str()), (kind, root, place));
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_way_out_and_without_credentials() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let below_a_file = dir.path().join("file/store").display().to_string();
        let endpoint = [("AWS_ENDPOINT", "http://127.0.0.1:1")];
        let half = [("AWS_ACCESS_KEY_ID", "key")];
        for (place, variables, words) in [
            ("", &[][..], "it is empty"),
            ("ftp://me:secret@host/x?sig=secret", &[], "ftp://host/x` cannot be used for weights: stores of this kind"),
            ("s3:///x", &[], "stores of this kind"),
            (&below_a_file, &[], "Not a directory"),
            ("s3://bucket/x", &endpoint, "AWS_ALLOW_HTTP=true"),
            ("s3://bucket/x", &half, "SecretAccessKey"),
        ] {
            let error = open_with(place, variables).err().unwrap_or_else(|| panic!("{place}: is taken")).to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{place}: {error}");
        }
    }

    #[test]
    fn variables_go_before_our_time_outs() {
        let variables = [("AWS_TIMEOUT".to_owned(), "1 second".to_owned()), ("AWS_PROFILE".to_owned(), "p".to_owned())];
        let options = options(&variables, "AWS_", AmazonS3ConfigKey::Client);
        let last = options.last().unwrap();
        assert_eq!((last.0, last.1.as_str()), (AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "1 second"));
        assert_eq!(options.len(), TIME_OUTS.len() + 1);
    }
}
