//! What the mount table says: options under which a volume cannot keep what kaas needs, however well it does while it
//! is looked at.

use super::check::{Basis, Check, Probe};
use super::protocol::{Family, Volume};

/// Judges the mounts of both processes.
pub fn judge(a: &Volume, b: &Volume) -> Check {
    let mut probe = Probe::new("mount_options", "mount options", Basis::Mount);
    let mut objections = objections(a);
    for objection in self::objections(b) {
        if !objections.contains(&objection) {
            objections.push(objection);
        }
    }
    for objection in &objections {
        probe.violation(objection.clone());
    }
    let options: Vec<_> =
        a.options.iter().filter(|option| TOLD.iter().any(|told| option.starts_with(told))).cloned().collect();
    probe.end(if options.is_empty() { "nothing against them".to_owned() } else { options.join(", ") })
}

/// Options worth showing.
const TOLD: &[&str] =
    &["vers=", "hard", "proto=", "rsize=", "wsize=", "timeo=", "actimeo=", "noac", "lookupcache=", "sync"];

fn objections(volume: &Volume) -> Vec<String> {
    let has = |name: &str| volume.options.iter().any(|option| option == name);
    let mut found = Vec::new();
    if has("ro") {
        found.push("ro: the volume cannot be written".to_owned());
    }
    if volume.family != Family::Nfs {
        return found;
    }
    for soft in ["soft", "softerr"] {
        if has(soft) {
            found.push(format!(
                "{soft}: a server that does not answer makes writes and syncs fail, which is final for the file: mount with hard"
            ));
        }
    }
    if has("nocto") {
        found.push(
            "nocto: an open does not ask the server, so a successor can miss what was synced".to_owned(),
        );
    }
    let version = volume.options.iter().find_map(|option| option.strip_prefix("vers="));
    if version.is_some_and(|version| matches!(version, "2" | "3" | "4" | "4.0")) {
        let version = version.unwrap_or_default();
        found.push(format!(
            "vers={version}: NFSv4.1 or later is needed (sessions: a retried call is done once)"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::check::Outcome;

    fn volume(family: Family, options: &str) -> Volume {
        Volume {
            family,
            file_system: String::new(),
            source: String::new(),
            mounted_on: String::new(),
            options: options.split(',').map(str::to_owned).collect(),
            device: 1,
            total_bytes: None,
            available_bytes: None,
        }
    }

    #[test]
    fn options_that_are_in_the_way_are_named() {
        let good = volume(Family::Nfs, "rw,relatime,vers=4.2,hard,proto=tcp,local_lock=none");
        assert_eq!(judge(&good, &good).outcome, Outcome::Passed);
        for (options, named) in [
            ("rw,vers=4.2,soft", "soft:"),
            ("rw,vers=4.2,softerr", "softerr:"),
            ("rw,vers=4.2,hard,nocto", "nocto:"),
            ("rw,vers=3,hard", "vers=3:"),
            ("rw,vers=4.0,hard", "vers=4.0:"),
            ("ro,vers=4.2,hard", "ro:"),
        ] {
            let bad = volume(Family::Nfs, options);
            for check in [judge(&bad, &good), judge(&good, &bad)] {
                assert_eq!((check.outcome, check.violations), (Outcome::Failed, 1), "{options}");
                assert!(check.detail.starts_with(named), "{}", check.detail);
            }
        }
        // What means something else elsewhere is no objection there.
        assert_eq!(judge(&volume(Family::Local, "rw,soft"), &good).outcome, Outcome::Passed);
    }
}
