//! Errors of the object store in words that a user can act on.

use std::{error::Error, io, iter::successors};

use object_store::client::{HttpError, HttpErrorKind};

use crate::{
    Doing, StoreError,
    error::is_full,
    provider::{OpenStore, Provider},
};

/// Longest reason that is shown.
const LONGEST: usize = 300;
/// Codes of S3 and names of Azure for a bucket that is not there.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"];
/// Signs that a store has no room.
const FULL: [&str; 4] = ["status code: 507", "StorageFull", "QuotaExceeded", "No space left"];
/// Signs that a store does not know who is asking.
const DENIED: [&str; 5] =
    ["InvalidToken", "ExpiredToken", "AuthorizationHeaderMalformed", "status code: 401", "status code: 403"];
/// Addresses where clouds give machines their credentials: they are asked when no variable gives any.
const METADATA: [&str; 4] = ["latest/api/token", "latest/meta-data", "computeMetadata", "metadata/identity"];

/// The typed error for an error of the object store.
pub fn understand(place: &OpenStore, doing: Doing, object: &str, error: &object_store::Error) -> StoreError {
    use object_store::Error as E;
    let (all, reason) = (error.to_string(), reason(error));
    let says = |signs: &[&str]| signs.iter().any(|sign| all.contains(sign));
    let (place_, object) = (place.shown.clone(), object.to_owned());
    let io = find::<io::Error>(error).map(io::Error::kind);
    let http = find::<HttpError>(error).map(HttpError::kind);

    if io.is_some_and(is_full) || says(&FULL) {
        return StoreError::Full { place: place_, object, reason };
    }
    if says(&METADATA) {
        let variables = place.kind.credentials();
        return StoreError::NoCredentials { place: place_, reason, variables };
    }
    match (error, http, io) {
        _ if says(&NO_BUCKET) => StoreError::NoBucket { place: place_ },
        (E::NotFound { .. }, ..) => StoreError::NotFound { place: place_, object },
        (E::PermissionDenied { .. } | E::Unauthenticated { .. }, ..)
        | (_, _, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)) => {
            denied(place, doing, object, reason)
        }
        _ if says(&DENIED) => denied(place, doing, object, reason),
        (_, Some(HttpErrorKind::Timeout), _) => StoreError::TimedOut { place: place_, doing, object, reason },
        (_, Some(HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted), _) => {
            StoreError::Unreachable { place: place_, doing, object, reason }
        }
        (E::NotSupported { .. } | E::NotImplemented { .. }, ..)
            if place.kind == Provider::Http && doing != Doing::Reading =>
        {
            StoreError::ReadOnly { place: place_ }
        }
        _ => StoreError::Other { place: place_, doing, object, reason },
    }
}

fn denied(place: &OpenStore, doing: Doing, object: String, reason: String) -> StoreError {
    let (place, variables) = (place.shown.clone(), place.kind.credentials());
    StoreError::Denied { place, doing, object, reason, variables }
}

fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

fn find<E: Error + 'static>(error: &object_store::Error) -> Option<&E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// The innermost message, or the message in an answer in XML.
fn reason(error: &object_store::Error) -> String {
    let innermost = chain(error).last().map(ToString::to_string).unwrap_or_default();
    let said = ["Code", "Message"].map(|tag| between(&innermost, tag));
    let text = match said {
        [Some(code), Some(message)] if !message.is_empty() => format!("{code}: {message}"),
        [Some(code), _] => code.to_owned(),
        _ => innermost,
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(LONGEST).collect()
}

fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let start = text.split_once(&format!("<{tag}>"))?.1;
    Some(start.split_once(&format!("</{tag}>"))?.0)
}
