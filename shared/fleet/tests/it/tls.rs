//! Certificates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::certificates::{Authority, EXPIRED, TODAY};
use shared_fleet::{JoinOptions, ListenOptions, Stage, ZenohCoordinator, probe};

use crate::support::{PATIENCE, Serving, call, join, listen, token_file};

/// A coordinator with a certificate for this name.
fn proven(authority: &Authority, name: &str, days: [i64; 2]) -> ListenOptions {
    let (certificate, key) = authority.sign(name, days);
    ListenOptions { certificate: Some(certificate), private_key: Some(key), ..listen("tls/127.0.0.1:0") }
}

/// How a worker joins that trusts this authority.
fn trusting(coordinator: &Serving, authority: &Authority) -> JoinOptions {
    JoinOptions { ca: Some(authority.ca()), ..JoinOptions::to(&format!("tls/{}", coordinator.address)).unwrap() }
}

/// Why a worker is refused; the probe says the same, at this stage.
fn refused(options: &JoinOptions, stage: Stage) -> String {
    let error = join(options, 1).err().expect("it does not get in").to_string();
    let (at, seen) = probe(options, PATIENCE).failed.expect("it does not get in");
    assert_eq!((at, seen.to_string()), (stage, error.clone()));
    let start = format!("--join {}: ", options.endpoint);
    error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
}

fn from_somebody(coordinator: &Serving, reason: &str) {
    coordinator.wait_for(reason, |words| words == format!("somebody: {reason}"));
}

#[test]
fn a_coordinator_has_a_certificate_that_workers_trust() {
    let authority = Authority::new();
    let coordinator = Serving::new(&proven(&authority, "127.0.0.1", TODAY));
    let options = trusting(&coordinator, &authority);
    let mut worker = join(&options, 1).unwrap();
    call(&mut worker, 1);
    let seen = probe(&options, PATIENCE);
    assert!(seen.failed.is_none() && seen.tls_handshake_s.is_some(), "{seen:?}");
    drop(worker);
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
    drop(
        ZenohCoordinator::open(&ListenOptions {
            endpoint: "tls/[::1]:0".parse().unwrap(),
            ..proven(&authority, "::1", TODAY)
        })
        .unwrap(),
    );
}

#[test]
fn a_coordinator_that_workers_do_not_trust_has_none() {
    let (authority, other) = (Authority::new(), Authority::new());
    let coordinator = Serving::new(&proven(&authority, "127.0.0.1", TODAY));
    let not = "the coordinator's certificate is not accepted: it is signed by";
    let options = trusting(&coordinator, &other);
    assert_eq!(refused(&options, Stage::Certificates), format!("{not} neither --tls-ca nor a public authority"));
    from_somebody(&coordinator, "it does not know who signed `tls_certificate`");
    let options = JoinOptions { ca: None, ..options };
    assert_eq!(
        refused(&options, Stage::Certificates),
        format!("{not} no public authority; name who signed it with --tls-ca")
    );
}

#[test]
fn a_certificate_is_for_today_and_for_its_host() {
    let authority = Authority::new();
    let not = "the coordinator's certificate is not accepted: ";
    let coordinator = Serving::new(&proven(&authority, "127.0.0.1", EXPIRED));
    assert_eq!(
        refused(&trusting(&coordinator, &authority), Stage::Certificates),
        format!("{not}it has expired; the coordinator needs a new one, if this host's clock is right")
    );
    from_somebody(&coordinator, "`tls_certificate` has expired");
    let coordinator = Serving::new(&proven(&authority, "127.0.0.1", [1, 2]));
    assert_eq!(
        refused(&trusting(&coordinator, &authority), Stage::Certificates),
        format!("{not}it is not valid yet; is this host's clock right?")
    );
    let coordinator = Serving::new(&proven(&authority, "run.example.org", TODAY));
    assert_eq!(
        refused(&trusting(&coordinator, &authority), Stage::Certificates),
        format!("{not}it is not for the name 127.0.0.1, but for run.example.org")
    );
    from_somebody(&coordinator, "it does not accept `tls_certificate`; is it for another name?");
}

#[test]
fn with_an_authority_for_workers_each_has_a_certificate_of_it() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mutual = ListenOptions { client_ca: Some(authority.ca()), ..proven(&authority, "127.0.0.1", TODAY) };
    let coordinator = Serving::new(&mutual);
    let with = |(certificate, key): (PathBuf, PathBuf)| JoinOptions {
        certificate: Some(certificate),
        key: Some(key),
        ..trusting(&coordinator, &authority)
    };
    let mut worker = join(&with(authority.sign("worker", TODAY)), 1).unwrap();
    call(&mut worker, 1);

    let missing = "asks for a certificate: give --tls-certificate and --tls-private-key, signed by its `tls_client_ca`";
    assert_eq!(refused(&trusting(&coordinator, &authority), Stage::Certificates), format!("the coordinator {missing}"));
    from_somebody(&coordinator, "it has no certificate, and `tls_client_ca` asks for one");
    let not = "the coordinator does not accept --tls-certificate: ";
    let foreign = with(other.sign("worker", TODAY));
    assert_eq!(refused(&foreign, Stage::Certificates), format!("{not}it is not signed by its `tls_client_ca`"));
    from_somebody(&coordinator, "its certificate is not signed by `tls_client_ca`");
    let expired = with(authority.sign("worker", EXPIRED));
    assert_eq!(refused(&expired, Stage::Certificates), format!("{not}it has expired"));
    from_somebody(&coordinator, "its certificate has expired");
    call(&mut worker, 1);
}

#[test]
fn a_token_is_asked_for_behind_a_certificate_too() {
    let authority = Authority::new();
    let (_dir, word) = token_file("the word of the coordinator");
    let coordinator =
        Serving::new(&ListenOptions { token_file: Some(word.clone()), ..proven(&authority, "127.0.0.1", TODAY) });
    let without = trusting(&coordinator, &authority);
    assert_eq!(
        refused(&without, Stage::Join),
        "the coordinator asks for a token: give --token-file, with the word of its `token_file`"
    );
    let (_dir, other) = token_file("the word of somebody else");
    assert_eq!(
        refused(&JoinOptions { token_file: Some(other), ..without.clone() }, Stage::Join),
        "the coordinator does not accept the token: --token-file has another word than its `token_file`"
    );
    call(&mut join(&JoinOptions { token_file: Some(word), ..without }, 1).unwrap(), 1);
}

#[test]
fn each_side_says_when_the_other_speaks_without_tls() {
    let authority = Authority::new();
    let tls = Serving::new(&proven(&authority, "127.0.0.1", TODAY));
    assert_eq!(
        refused(&tls.join_options(), Stage::Join),
        format!("what listens there speaks TLS; join tls/{}", tls.address)
    );
    from_somebody(&tls, "it does not speak TLS");
    let tcp = Serving::new(&listen("tcp/127.0.0.1:0"));
    assert_eq!(
        refused(&trusting(&tcp, &authority), Stage::Certificates),
        format!("what listens there does not speak TLS; is it tcp/{}?", tcp.address)
    );
}

#[test]
fn files_are_looked_at_before_anything_listens() {
    let authority = Authority::new();
    let coordinator = proven(&authority, "127.0.0.1", TODAY);
    let (_, other) = authority.sign("other", TODAY);
    let open = |options: ListenOptions| ZenohCoordinator::open(&options).map(drop).unwrap_err().to_string();
    let certificate = coordinator.certificate.clone().unwrap();
    assert_eq!(
        open(ListenOptions { private_key: Some(other.clone()), ..coordinator.clone() }),
        format!(
            "`tls_private_key` {}: it is not the key of `tls_certificate` {}",
            other.display(),
            certificate.display()
        )
    );
    assert_eq!(
        open(ListenOptions { private_key: Some(certificate.clone()), ..coordinator.clone() }),
        format!(
            "`tls_private_key` {}: it has no private key: expected PEM, with a line BEGIN PRIVATE KEY",
            certificate.display()
        )
    );
    assert_eq!(
        open(ListenOptions { client_ca: Some(other.clone()), ..coordinator.clone() }),
        format!(
            "`tls_client_ca` {}: it has no certificate: expected PEM, with a line BEGIN CERTIFICATE",
            other.display()
        )
    );
    assert_eq!(
        open(ListenOptions { certificate: Some("/nowhere/cert.pem".into()), ..coordinator.clone() }),
        "`tls_certificate` /nowhere/cert.pem: No such file or directory (os error 2)"
    );
    let odd = authority.ca().with_file_name("a;b.pem");
    fs::copy(&certificate, &odd).unwrap();
    assert!(open(ListenOptions { certificate: Some(odd), ..coordinator }).contains("its path has one of ; # ? = |"));
}

#[test]
fn flags_that_do_not_fit_are_refused_before_anybody_is_asked() {
    let authority = Authority::new();
    let (certificate, _) = authority.sign("worker", TODAY);
    let check = |options: JoinOptions| join(&options, 1).map(drop).unwrap_err().to_string();
    let to = |endpoint: &str| JoinOptions::to(endpoint).unwrap();
    assert_eq!(
        check(JoinOptions { ca: Some(authority.ca()), ..to("tcp/127.0.0.1:1") }),
        "--tls-ca has no effect with --join tcp/127.0.0.1:1: join tls/…, or leave it out"
    );
    assert_eq!(
        check(to("tcp/127.0.0.1:0")),
        "--join tcp/127.0.0.1:0: nobody listens at port 0; write the port of the run's `listen`"
    );
    assert_eq!(
        check(JoinOptions { certificate: Some(certificate), ..to("tls/127.0.0.1:1") }),
        "--tls-certificate and --tls-private-key belong together; give both"
    );
    assert_eq!(
        check(to("tls/[::1]:1")),
        "--join tls/[::1]:1: TLS needs the name that is in the coordinator's certificate, or its IPv4 address; write \
         that"
    );
    let missing = JoinOptions { ca: Some(Path::new("/nowhere/ca.pem").into()), ..to("tls/127.0.0.1:1") };
    assert_eq!(check(missing), "--tls-ca /nowhere/ca.pem: No such file or directory (os error 2)");
}
