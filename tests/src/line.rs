//! Hosts as network namespaces of this machine, each at the end of a line of its own: what the kernel's own TCP makes
//! of a narrow line that loses packets and is pulled out.

use std::{
    fs,
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long the kernel may take to make a namespace.
const PATIENCE: Duration = Duration::from_secs(10);

/// A network namespace with one line to this one. It goes with its value, and with the test that has made it.
pub struct Host {
    /// Keeps the namespace as long as its input is open.
    holder: Child,
    /// The near end of the line.
    device: String,
    /// Address of this machine at the near end. Other hosts reach it as well.
    pub here: Ipv4Addr,
}

impl Host {
    /// The host of this number, from 0, or nothing where namespaces and lines cannot be made.
    ///
    /// # Panics
    /// When there is a line and it cannot be set up.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        let holder = Command::new("unshare").args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let device = format!("line{}x{number}", std::process::id() % 100_000);
        let host = Self { holder: holder.ok()?, device, here: Ipv4Addr::new(10, 77, number, 1) };
        host.is_apart().then_some(())?;
        let (device, process, there) = (&host.device, host.holder.id().to_string(), format!("10.77.{number}.2/24"));
        let here = host.here.to_string();
        run("ip", &["link", "add", device, "type", "veth", "peer", "name", "line", "netns", &process])?;
        // What goes wrong from here on is no reason to leave a test out.
        run("ip", &["address", "add", &format!("{here}/24"), "dev", device]).expect("the address is free");
        run("ip", &["link", "set", device, "up"]).expect("the near end is there");
        host.run(&["ip", "address", "add", &there, "dev", "line"]).expect("the far end has no address");
        host.run(&["ip", "link", "set", "line", "up"]).expect("the far end is there");
        host.run(&["ip", "route", "add", "default", "via", &here]).expect("the host has no other way");
        Some(host)
    }

    /// Whether the namespace is there.
    fn is_apart(&self) -> bool {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let (own, begun) = (namespace("self"), Instant::now());
        while begun.elapsed() < PATIENCE {
            match namespace(&self.holder.id().to_string()) {
                None => return false,
                found if found != own => return true,
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
        false
    }

    /// What runs a program on this host, to be given it with its arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.id().to_string(), "--"]);
        command
    }

    fn run(&self, line: &[&str]) -> Option<()> {
        let mut command = self.command();
        is_well(command.args(line))
    }

    /// Makes the line narrow: so many kbit go each way in a second, and of what does not fit into a few packets of
    /// queue the rest is lost.
    ///
    /// # Panics
    /// When the kernel has no token buckets.
    pub fn narrow(&self, kbit_per_s: u32) {
        let rate = format!("{kbit_per_s}kbit");
        let bucket = ["root", "tbf", "rate", &rate, "burst", "5000", "limit", "10000"];
        let near = run("tc", &[&["qdisc", "add", "dev", &self.device][..], &bucket].concat());
        let far = self.run(&[&["tc", "qdisc", "add", "dev", "line"][..], &bucket].concat());
        assert!(near.is_some() && far.is_some(), "no token bucket for {}", self.device);
    }

    /// Packets that did not fit so far, on their way to the host.
    ///
    /// # Panics
    /// When that cannot be found out.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let told =
            Command::new("tc").args(["-s", "qdisc", "show", "dev", &self.device]).output().expect("tc was there");
        let told = String::from_utf8(told.stdout).expect("tc writes text");
        let dropped = told.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
        dropped.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count: {told}"))
    }

    /// Pulls the line out for a while: nobody is told, and what is on the way is lost.
    ///
    /// # Panics
    /// When that does not work.
    pub fn pull_out_for(&self, time: Duration) {
        let set = |what: &[&str]| self.run(&[&["ip"][..], what].concat()).expect("the line is there");
        set(&["link", "set", "line", "down"]);
        thread::sleep(time);
        set(&["link", "set", "line", "up"]);
        // It has gone with the line.
        set(&["route", "add", "default", "via", &self.here.to_string()]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn run(program: &str, arguments: &[&str]) -> Option<()> {
    is_well(Command::new(program).args(arguments))
}

fn is_well(command: &mut Command) -> Option<()> {
    let status = command.stdin(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    status.success().then_some(())
}
