//! Hosts as network namespaces of this machine, each behind a link of its own: tests see how the kernel's own TCP
//! handles a slow link that loses packets and is unplugged.

use std::{
    fs,
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long the kernel may take to make a namespace.
const PATIENCE: Duration = Duration::from_secs(10);

/// A network namespace with one link to this one. It ends with its value, and with the process of the test.
pub struct Host {
    /// Keeps the namespace as long as its input is open.
    holder: Child,
    /// The near end of the link.
    device: String,
    /// Address of this machine at the near end. Other hosts reach it as well.
    pub here: Ipv4Addr,
}

impl Host {
    /// The host of this number, from 0; none if namespaces and links cannot be created.
    ///
    /// # Panics
    /// When the link exists but cannot be set up.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        let holder = Command::new("unshare").args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let device = format!("line{}x{number}", std::process::id() % 100_000);
        let host = Self { holder: holder.ok()?, device, here: Ipv4Addr::new(10, 77, number, 1) };
        host.is_apart().then_some(())?;
        let (device, process, there) = (&host.device, host.holder.id().to_string(), format!("10.77.{number}.2/24"));
        let here = host.here.to_string();
        run("ip", &["link", "add", device, "type", "veth", "peer", "name", "line", "netns", &process])?;
        // Errors from here on are no reason to skip a test.
        run("ip", &["address", "add", &format!("{here}/24"), "dev", device]).expect("the address is free");
        run("ip", &["link", "set", device, "up"]).expect("the near end is there");
        host.run(&["ip", "address", "add", &there, "dev", "line"]).expect("the far end has no address");
        host.run(&["ip", "link", "set", "line", "up"]).expect("the far end is there");
        host.run(&["ip", "route", "add", "default", "via", &here]).expect("the host has no other way");
        Some(host)
    }

    /// Whether the process has a namespace of its own.
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

    /// A command that runs a program on this host; add the program and its arguments.
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

    /// Limits the rate of the link: `kbit_per_s` in each direction, with a queue of a few packets. Packets that do not
    /// fit are lost.
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

    /// Packets for the host that were lost because they did not fit.
    ///
    /// # Panics
    /// When the system does not tell.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let told =
            Command::new("tc").args(["-s", "qdisc", "show", "dev", &self.device]).output().expect("tc was there");
        let told = String::from_utf8(told.stdout).expect("tc writes text");
        let dropped = told.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
        dropped.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count: {told}"))
    }

    /// Unplugs the link for a while: nobody is notified, and packets on the way are lost.
    ///
    /// # Panics
    /// When that does not work.
    pub fn pull_out_for(&self, time: Duration) {
        let set = |what: &[&str]| self.run(&[&["ip"][..], what].concat()).expect("the line is there");
        set(&["link", "set", "line", "down"]);
        thread::sleep(time);
        set(&["link", "set", "line", "up"]);
        // The route has gone with the link.
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
