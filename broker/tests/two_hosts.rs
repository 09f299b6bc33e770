//! Two brokers on two hosts and one directory on NFS, by force: the earlier one's host stands still or is cut off from the
//! server while the later one takes over. Run by `fault-injection/lab/run-all`, see docs/labs.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod durability_support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use durability_support::contest::Chain;
use durability_support::history::History;
use durability_support::random::Random;
use durability_support::wait_until;
use kaas_fault_injection::lab::{Lab, Machine, Nfs, guest_path, why_not};
use kaas_fault_injection::process::BrokerCommand;

/// `kaas` on a client of the lab, on the shared directory.
fn kaas_on(lab: &Lab, client: u8) -> BrokerCommand {
    let guest = Machine::Client(client);
    let program = lab.work_dir().join(format!("kaas-on-{guest}"));
    let nfs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fault-injection/lab/nfs");
    let kaas = guest_path(Path::new(env!("CARGO_BIN_EXE_kaas")));
    let (work_dir, nfs, kaas) = (lab.work_dir().display(), nfs.display(), kaas.display());
    let script =
        format!("#!/bin/sh\nKAAS_LAB_DIR='{work_dir}' exec '{nfs}' exec {guest} -- '{kaas}' \"$@\"\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let address = lab.nfs().address(guest).unwrap();
    let level = std::env::var("KAAS_TEST_LOG").unwrap_or_else(|_| "info".to_owned());
    BrokerCommand::new(program, format!("{}/kaas-data", Nfs::MOUNT))
        .listen(format!("{address}:9092"))
        .arg("--log-level")
        .arg(level)
}

/// How the earlier broker is kept from noticing.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// Its host stands still.
    Frozen,
    /// Its host does not reach the server; clients reach it.
    CutOff,
}

#[test]
#[ignore = "minutes: fault-injection/lab/run-all"]
fn a_broker_in_trouble_is_deposed_by_one_on_another_host() {
    if let Some(reason) = why_not(&["nfs"]) {
        panic!("no lab: {reason}");
    }
    let lab = Lab::hold(&["nfs:2"]).unwrap();
    // This thread, and all that it starts: producers, consumers, committers.
    lab.nfs().enter_network().unwrap();
    let mut random = Random::for_test("two hosts");
    let history = History::default();
    let mut chain = Chain::begin(kaas_on(&lab, 1).start().unwrap(), &history, &mut random);
    let troubles = [Trouble::Frozen, Trouble::CutOff, Trouble::CutOff, Trouble::Frozen];
    for (number, trouble) in (2..).zip(troubles) {
        // Brokers 1, 3, 5 on one host, 2, 4 on the other.
        let (in_trouble, host) = if number % 2 == 0 { (1, 2) } else { (2, 1) };
        chain.wait_for_load();
        println!("broker {}: {trouble:?}", number - 1);
        match trouble {
            Trouble::Frozen => lab.nfs().stop(Machine::Client(in_trouble)).unwrap(),
            Trouble::CutOff => lab.nfs().cut(in_trouble).unwrap(),
        }
        let (takeover, later) = chain.take_over(&kaas_on(&lab, host), number, &mut random);
        println!("broker {number} has taken over");
        wait_until("acknowledgements", || later.acknowledged(&history) > 100);
        match trouble {
            Trouble::Frozen => lab.nfs().cont(Machine::Client(in_trouble)).unwrap(),
            Trouble::CutOff => lab.nfs().heal(in_trouble).unwrap(),
        }
        println!("broker {} goes on", number - 1);
        // Both are under load, until the earlier one has refused what it cannot promise any more.
        std::thread::sleep(Duration::from_secs(3));
        wait_until("acknowledgements", || later.acknowledged(&history) > 300);
        chain.succeed(later, &takeover);
    }
    // At last by the host that did not lead last.
    chain.end(&kaas_on(&lab, 2));
}
