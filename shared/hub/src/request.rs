//! Requests to the Hub, and to places it redirects to: the token goes to the Hub's own scheme, host and port alone.

use std::{io::Read, time::Duration};

use ureq::{
    Agent, Body, RequestBuilder, SendBody,
    http::{
        HeaderValue, Response,
        header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION, USER_AGENT},
    },
};
use url::Url;

use crate::error::without_secrets;

/// Redirects that are followed for one request. Browsers and curl follow more, and the Hub needs two.
const MOST_REDIRECTS: usize = 10;

/// The name of this program, as servers read it.
const AGENT: &str = concat!("tandem/", env!("CARGO_PKG_VERSION"));

/// A client of the Hub, with its token.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Nothing was answered.
    #[error(transparent)]
    Http(#[from] Box<ureq::Error>),
    /// Nothing was answered at the target of a redirect.
    #[error("there is a redirect to {to}, which does not answer: {error}")]
    Elsewhere {
        /// The target, without credentials.
        to: String,
        /// What happened there.
        error: Box<ureq::Error>,
    },
    /// The address that is asked for or redirected to is no address.
    #[error("`{address}` is no address of the web: {reason}")]
    Address {
        /// As it was given, without credentials.
        address: String,
        /// The fault.
        reason: String,
    },
    /// A redirect from an encrypted connection to one that is not.
    #[error("{from} redirects to {to}, which is not encrypted, and is not followed")]
    Unencrypted {
        /// The address that redirects.
        from: String,
        /// The target of the redirect.
        to: String,
    },
    /// A redirect of a request with content that would lose the content.
    #[error("{from} redirects to {to}, and content is not sent there; name the place itself")]
    Moved {
        /// The address that redirects.
        from: String,
        /// The target of the redirect.
        to: String,
    },
    /// More redirects than any file needs.
    #[error("{address} redirects more than {MOST_REDIRECTS} times, at last to {last}")]
    Redirects {
        /// The first address.
        address: String,
        /// The target of the last redirect.
        last: String,
    },
}

impl RequestError {
    /// Whether another attempt would end the same way.
    pub fn is_for_good(&self) -> bool {
        !matches!(self, Self::Http(_) | Self::Elsewhere { .. })
    }
}

impl Client {
    /// A client of the Hub at `endpoint`.
    pub fn new(endpoint: &str, token: Option<String>) -> Self {
        // Redirects are followed here: a library that follows them takes the token along to other ports.
        let agent = Agent::config_builder().max_redirects(0).http_status_as_error(false).build().into();
        Self { agent, endpoint: endpoint.to_owned(), token }
    }

    /// The answer of an address of the Hub, whatever the status. `path` begins with a slash.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn get(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Result<Response<Body>, RequestError> {
        let hub = address(&self.endpoint)?;
        let asked = address(&format!("{}{path}", self.endpoint))?;
        let mut at = asked.clone();
        for _ in 0..=MOST_REDIRECTS {
            let response = self.ask(&at, &hub, headers, within).map_err(no_answer(&asked, &at))?;
            let Some(next) = redirect(&at, &response)? else { return Ok(response) };
            at = next;
        }
        Err(RequestError::Redirects { address: shown(&asked), last: shown(&at) })
    }

    /// The answer of an address to content, whatever the status: a path of the Hub, which begins with a slash, or a
    /// whole address.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn post(
        &self,
        to: &str,
        headers: &[(&str, &str)],
        content: &[u8],
        within: Duration,
    ) -> Result<Response<Body>, RequestError> {
        let hub = address(&self.endpoint)?;
        let asked = if to.starts_with('/') { address(&format!("{}{to}", self.endpoint))? } else { self.beside(to)? };
        let mut at = asked.clone();
        for _ in 0..=MOST_REDIRECTS {
            let request = self.with_headers(self.agent.post(at.as_str()), &at, &hub, headers);
            let sent = request.config().timeout_global(Some(within)).build().send(content);
            let response = sent.map_err(Box::new).map_err(no_answer(&asked, &at))?;
            let Some(next) = redirect(&at, &response)? else { return Ok(response) };
            // All others ask for another request, without the content.
            if !matches!(response.status().as_u16(), 307 | 308) {
                return Err(RequestError::Moved { from: shown(&at), to: shown(&next) });
            }
            at = next;
        }
        Err(RequestError::Redirects { address: shown(&asked), last: shown(&at) })
    }

    /// Sends `length` bytes of content to an address that the Hub has named, without the token: the address itself is
    /// the permission. Redirects are not followed.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn put(
        &self,
        to: &str,
        headers: &[(String, String)],
        content: impl Read + 'static,
        length: u64,
    ) -> Result<Response<Body>, RequestError> {
        let at = self.beside(to)?;
        let mut request = self.agent.put(at.as_str()).header(USER_AGENT, AGENT);
        // With a length, the content is not sent in chunks, which stores of objects refuse.
        request = request.header(CONTENT_LENGTH, HeaderValue::from(length));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send(SendBody::from_owned_reader(content)).map_err(|error| Box::new(error).into())
    }

    /// An address that an encrypted Hub names must be encrypted too.
    fn beside(&self, to: &str) -> Result<Url, RequestError> {
        let (hub, to) = (address(&self.endpoint)?, address(to)?);
        if hub.scheme() == "https" && to.scheme() == "http" {
            return Err(RequestError::Unencrypted { from: shown(&hub), to: shown(&to) });
        }
        Ok(to)
    }

    fn ask(
        &self,
        at: &Url,
        hub: &Url,
        headers: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Result<Response<Body>, Box<ureq::Error>> {
        let request = self.with_headers(self.agent.get(at.as_str()), at, hub, headers);
        request.config().timeout_global(within).build().call().map_err(Box::new)
    }

    fn with_headers<B>(
        &self,
        request: RequestBuilder<B>,
        at: &Url,
        hub: &Url,
        headers: &[(&str, &str)],
    ) -> RequestBuilder<B> {
        let mut request = request.header(USER_AGENT, AGENT);
        if let Some(token) = self.token.as_ref().filter(|_| at.origin() == hub.origin()) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request
    }
}

fn address(text: &str) -> Result<Url, RequestError> {
    let fail = |reason: String| RequestError::Address { address: without_secrets(text), reason };
    let url = Url::parse(text).map_err(|error| fail(error.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(fail(format!("{other} is not http"))),
    }
}

/// The error of a request that has come to `at`, which names the place if redirects have led there.
fn no_answer(asked: &Url, at: &Url) -> impl Fn(Box<ureq::Error>) -> RequestError {
    move |error| match at == asked {
        true => RequestError::Http(error),
        false => RequestError::Elsewhere { to: shown(at), error },
    }
}

/// The target of a redirect, if the answer is one.
fn redirect(from: &Url, response: &Response<Body>) -> Result<Option<Url>, RequestError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let text = String::from_utf8_lossy(location.as_bytes());
    let joined = from
        .join(&text)
        .map_err(|error| RequestError::Address { address: without_secrets(&text), reason: error.to_string() })?;
    let to = address(joined.as_str())?;
    if from.scheme() == "https" && to.scheme() == "http" {
        return Err(RequestError::Unencrypted { from: shown(from), to: shown(&to) });
    }
    Ok(Some(to))
}

/// An address in a message: without credentials.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // An address without a host has no name of a user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(location: &str) -> Response<Body> {
        let body = Body::builder().data("");
        Response::builder().status(302).header(LOCATION, location).body(body).expect("a valid answer")
    }

    #[test]
    fn redirects_lead_where_a_browser_would_go() {
        let from = address("https://hub.example/a/b?c=d").unwrap();
        for (location, to) in [
            ("https://cdn.example/x?sig=1", "https://cdn.example/x?sig=1"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/x/y", "https://hub.example/x/y"),
            ("y", "https://hub.example/a/y"),
            ("?q=1", "https://hub.example/a/b?q=1"),
            ("https://hub.example:443/x", "https://hub.example/x"),
        ] {
            assert_eq!(redirect(&from, &answer(location)).unwrap().unwrap().as_str(), to, "{location}");
        }
        for location in ["file:///etc/passwd", "ftp://hub.example/x", "https://", "javascript:x"] {
            assert!(redirect(&from, &answer(location)).is_err(), "{location}");
        }
        let error = redirect(&from, &answer("http://hub.example/x?sig=secret")).unwrap_err().to_string();
        assert!(error.contains("not encrypted") && !error.contains("secret"), "{error}");
    }
}
