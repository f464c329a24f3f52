//! Who may read the page.
//!
//! On this machine alone, anybody who can connect. But a foreign page in the same browser must not read ours through a
//! name that leads here (DNS rebinding), so only requests to this machine's own names are answered. Other machines need
//! the token.

use std::{fs, io, net::IpAddr};

use axum::http::{HeaderMap, Uri, header};
use shared_http::{equal, is_this_machine, random};

/// Name of the parameter in the first address.
const TOKEN: &str = "token";

/// The requirements for a request.
#[derive(Debug)]
pub struct Access {
    host: IpAddr,
    port: u16,
    token: Option<String>,
}

/// The judgement on a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be answered.
    Allowed,
    /// Its address has the token, which becomes a cookie now.
    Welcome,
    /// It calls this machine by a foreign name.
    WrongHost,
    /// It has no token, or a wrong one.
    NoToken,
}

impl Access {
    /// A token is required if other machines can connect.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(host: IpAddr, port: u16) -> io::Result<Self> {
        Ok(Self { host, port, token: if host.is_loopback() { None } else { Some(random()?) } })
    }

    /// The address to open, with the token.
    pub fn address(&self) -> String {
        let port = self.port;
        let host = match self.host {
            // The address that stands for all cannot be opened; other machines know this one by its name.
            host if host.is_unspecified() => fs::read_to_string("/proc/sys/kernel/hostname")
                .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned()),
            IpAddr::V6(host) => format!("[{host}]"),
            IpAddr::V4(host) => host.to_string(),
        };
        match &self.token {
            None => format!("http://{host}:{port}/"),
            Some(token) => format!("http://{host}:{port}/?{TOKEN}={token}"),
        }
    }

    /// The cookie that proves the token.
    pub fn cookie(&self) -> Option<String> {
        let token = self.token.as_ref()?;
        Some(format!("{}={token}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name()))
    }

    /// A browser sends the cookies of a machine to all of its ports, so pages on several ports need different names.
    fn cookie_name(&self) -> String {
        format!("tandem-{}", self.port)
    }

    /// Judges a request.
    pub fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let Some(token) = &self.token else {
            let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            return if is_this_machine(host) { Verdict::Allowed } else { Verdict::WrongHost };
        };
        let has = |pairs: &str, separator, name: &str| {
            let given = |pair: &str| equal(pair.trim().strip_prefix(name)?.strip_prefix('=')?, token).then_some(());
            pairs.split(separator).any(|pair| given(pair).is_some())
        };
        let name = self.cookie_name();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        if cookies.into_iter().any(|cookies| has(cookies, ';', &name)) {
            Verdict::Allowed
        } else if uri.query().is_some_and(|query| has(query, '&', TOKEN)) {
            Verdict::Welcome
        } else {
            Verdict::NoToken
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn on_this_machine_only_its_own_names_are_answered_to() {
        let access = Access::new("127.0.0.1".parse().unwrap(), 7117).unwrap();
        let judged = |host: &str| access.judge(&"/".parse().unwrap(), &headers(header::HOST, host));
        for host in ["127.0.0.1:7117", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.2"] {
            assert_eq!(judged(host), Verdict::Allowed, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7117",
            "localhost.evil.example",
            "192.168.0.1",
            "",
            "127.0.0.1.evil.example:1",
        ] {
            assert_eq!(judged(host), Verdict::WrongHost, "{host}");
        }
        assert_eq!(access.address(), "http://127.0.0.1:7117/");
        assert_eq!(access.cookie(), None);
    }

    #[test]
    fn beyond_this_machine_the_token_is_asked_for_and_becomes_a_cookie() {
        let access = Access::new("0.0.0.0".parse().unwrap(), 80).unwrap();
        let address = access.address();
        let (_, token) = address.split_once("token=").unwrap();
        assert_eq!(token.len(), 32);
        assert_ne!(Access::new("0.0.0.0".parse().unwrap(), 80).unwrap().address(), address);
        let uri = |query: &str| format!("/{query}").parse::<Uri>().unwrap();
        assert_eq!(access.judge(&uri(""), &headers(header::HOST, "localhost")), Verdict::NoToken);
        assert_eq!(access.judge(&uri("?token=0"), &HeaderMap::new()), Verdict::NoToken);
        assert_eq!(access.judge(&uri(&format!("?a=b&token={token}")), &HeaderMap::new()), Verdict::Welcome);
        let cookie = |value: String| access.judge(&uri(""), &headers(header::COOKIE, &value));
        assert_eq!(cookie(format!("other=1; tandem-80={token}")), Verdict::Allowed);
        assert_eq!(cookie(format!("tandem-81={token}")), Verdict::NoToken, "of another page's port");
        assert_eq!(cookie(format!("tandem-80={}", "0".repeat(32))), Verdict::NoToken);
    }
}
