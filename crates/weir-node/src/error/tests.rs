//! Kinds of errors, and what is said to do about them.

use super::*;
use weir_log::Refusal;
use weir_log::RefusalReason;
use weir_log::format::manifest::HexId;

fn refused(reason: RefusalReason) -> String {
    let refusal = Refusal {
        reason,
        journal: HexId([1; 16]),
        opening: None,
        epoch: 9,
        newest: None,
        newest_epoch: 8,
        last_write: 7,
        writes: 6,
        bytes: 5,
    };
    let error = LogError::JournalRefused { volume: VolumeId([2; 16]), refusal: Box::new(refusal) };
    NodeError::Log(error).help().unwrap()
}

#[test]
fn a_path_keeps_the_identity_of_the_volume_in_it() {
    let volume = VolumeId([2; 16]);
    let name = VolumeName::new("demo").unwrap();
    let used = LogError::InUse { volume, node: "other".to_owned(), lease_s: 60 };
    let path = format!("/data/volumes/{volume}/journal");
    let error = NodeError::Log(used).of_volume(&name, volume).to_string();
    assert!(error.contains("volume \"demo\"") && !error.contains(&volume.to_string()), "{error}");
    let error = NodeError::io("reading", path.clone(), io::Error::other("broken"));
    let error = error.of_volume(&name, volume).to_string();
    assert!(error.contains(&path), "{error}");
}

#[test]
fn what_a_journal_holds_is_counted_in_blocks() {
    let error = NodeError::NotSalvaged { name: "demo".to_owned(), blocks: 512, bytes: 2 << 20 };
    let said = error.to_string();
    assert!(said.contains("512 written blocks (2097152 bytes)"), "{said}");
}

#[test]
fn what_is_refused_has_its_way_out_as_help() {
    let connected = NodeError::Connected { name: "demo".to_owned(), clients: 2 };
    let help = connected.help().unwrap();
    assert!(help.contains("weir volume detach demo --disconnect"), "{help}");
    let (place, process) = ("/d/api.sock".to_owned(), ProcessId(Some(12)));
    let silent = NodeError::NoAnswer { place, process, reason: SILENT.to_owned() };
    assert!(silent.help().unwrap().contains("kill -CONT 12"));
    for (reason, way) in [
        (RefusalReason::Superseded, "weir volume salvage"),
        (RefusalReason::OtherHistory, "copy the volume's directory"),
        (RefusalReason::SetBack { seen: 1, by: "x" }, "newest data directory"),
        (RefusalReason::StoreSetBack { known: 2, newest: 1 }, "newest store"),
        (RefusalReason::Copied, "--adopt-journal"),
    ] {
        let help = refused(reason);
        assert!(help.contains(way), "{reason:?}: {help}");
    }
    let volume = VolumeId([2; 16]);
    let used = LogError::InUse { volume, node: "other".to_owned(), lease_s: 60 };
    assert!(NodeError::Log(used).help().unwrap().contains("weir volume detach"));
}
