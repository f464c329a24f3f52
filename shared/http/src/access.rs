//! Who may ask a server: names of this machine, and secrets.

use std::{
    fs::File,
    io::{self, Read},
    net::IpAddr,
};

/// Whether the header `Host` of a request, a name with or without a port, names this machine for itself. A foreign page
/// in a browser here can make its own name lead to this machine (DNS rebinding), but its requests still carry that
/// name.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether two secrets are equal. Takes the same time wherever the two differ.
#[must_use]
pub fn equal(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// 128 random bits of the system, as 32 hexadecimal digits.
///
/// # Errors
/// When the system has no random numbers.
pub fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for host in ["127.0.0.1:7117", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.2"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["evil.example:80", "localhost.evil.example", "192.168.0.1", "", "127.0.0.1.evil.example:1"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn secrets_are_equal_as_a_whole_or_not_at_all() {
        let secret = random().unwrap();
        assert_eq!((secret.len(), equal(&secret, &secret)), (32, true));
        assert_ne!(secret, random().unwrap());
        for other in ["", &secret[..31], &format!("{secret}0"), &secret.replace(&secret[..1], "g")] {
            assert!(!equal(&secret, other), "{other}");
        }
    }
}
