//! Deliberate bugs, each in a process of its own, until the simulation catches it.

use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::remote::REMOTE;
use crate::run;

/// Every deliberate bug of the product, by the name its code has, and the nodes of the runs that must catch it.
const MUTANTS: &[(&str, u64, &str)] = &[
    ("ack_before_earlier", 1, "acknowledge a record before an earlier one is on disk"),
    ("ack_before_write", 1, "acknowledge a record before it is on disk"),
    ("skip_fdatasync", 1, "answer a flush without a sync"),
    ("flush_joins_running", 1, "let a flush join a sync that runs already"),
    ("reuse_before_tail_durable", 1, "write over the ring before the new tail is durable"),
    ("reuse_pinned_segment", 1, "write over a segment that a read has pinned"),
    ("rot_is_end", 1, "take rot in the journal for its end"),
    ("no_piece_crc", 1, "do not verify what is read back from the journal"),
    ("stale_epoch_accepted", 1, "replay records that an earlier recovery had dropped"),
    ("split_at_segment_end", 1, "split a write over two records where its segment ends"),
    ("batch_ends_in_record", 1, "end an object in the middle of a write"),
    ("release_at_put", 1, "release journal space at the PUT, not at the committed prefix"),
    ("one_map", 1, "hide object data by writes that are still in the journal"),
    ("object_beyond_gap", 1, "accept an object beyond a gap"),
    ("superseded_epoch_accepted", 1, "accept an object of a superseded epoch"),
    ("no_copy_on_write", 1, "encode a checkpoint from a map that goes on changing"),
    ("replay_everything", 1, "replay journal writes that objects hold already"),
    ("replay_superseded_journal", 1, "replay a journal whose volume went on elsewhere"),
    ("no_frame_crc", 1, "do not verify frames of objects"),
    ("publish_before_stored", 1, "publish a checkpoint whose root is not stored yet"),
    ("publish_outside_prefix", 1, "publish a checkpoint whose root is beyond a gap"),
    ("epoch_not_durable", 1, "acknowledge before the superblock names the epoch"),
    ("shrink_beside_growth", 1, "shrink while a growth is about to set its size"),
    ("close_leaves_tasks", 1, "return from a close while tasks of the volume run on"),
    ("superblock_once", 1, "write one copy of the superblock only"),
    ("sequences_not_owned", 1, "upload without owning a first sequence"),
    ("overlay_not_forgotten", 1, "leave the overlay pointing into a segment that is written over"),
    ("trust_short_get", 1, "believe the store about the length of a body"),
    ("copy_applied_unconditionally", 1, "apply what the collector copied over newer writes"),
    ("delete_dead_after_checkpoint", 1, "delete what died after the published checkpoint"),
    ("delete_before_listed", 1, "delete garbage before the version that lists it counts"),
    ("entry_used_again_early", 1, "use the entry of a dead object before it is listed"),
    ("garbage_forgotten_at_opening", 1, "forget at an opening what the manifest lists"),
    ("snapshot_not_pinned", 1, "take a snapshot without pinning what it reaches"),
    ("pins_not_awaited", 1, "list garbage before it is known what snapshots reach"),
    (
        "shared_checkpoint_deleted",
        1,
        "delete with a snapshot the checkpoint pieces that the head shares",
    ),
    ("clone_without_second_look", 1, "make a clone without reading its parent again"),
    ("dependants_ignored", 1, "delete a snapshot without asking for its clones"),
    ("shared_dead_listed", 1, "delete by the names of dead objects of other streams"),
    ("replica_root_before_objects", 1, "name a root at a replica before its objects are there"),
    ("replica_deletes_by_sequence", 1, "delete at a replica by sequence, not by reachability"),
    ("promote_without_new_stream", 1, "promote a replica without a new stream"),
    ("journal_key_used_again", 1, "seal every opening of a journal under one key"),
    ("frame_nonce_used_again", 1, "seal all frames of an object under one nonce"),
    ("block_nonce_used_again", 1, "seal all blocks of a frame under one nonce"),
    ("no_block_crc", 1, "do not verify blocks of frames"),
    ("packed_blocks_unverified", 1, "do not verify blocks that were compressed one by one"),
    ("packed_block_from_begin", 1, "read a compressed block where its frame begins"),
    ("damaged_block_answered", 1, "answer a block that does not verify, where it is in memory"),
    ("placement_of_other_version", 1, "look for the data of version 2 where version 3 has it"),
    ("change_to_zero_unsaid", 1, "leave what became a hole out of a difference"),
    ("repair_gives_up_all", 1, "give up all of a damaged object, whatever can be read of it"),
    ("repair_removes_what_is_named", 1, "take what is named in a repair for an orphan"),
    ("index_pages_dropped", 1, "name only the first index page of the map in a checkpoint"),
    ("table_pieces_dropped", 1, "write only the first piece of the object table"),
    ("extent_lost_between_steps", 1, "lose an extent after each step of applying an object"),
    ("copy_resumed_elsewhere", 1, "go on with a copy at the wrong offset after a step of it"),
    ("snapshots_refused", 1, "refuse every snapshot"),
    ("extents_all_data", 1, "report data everywhere"),
    ("check_ignores_snapshots", 1, "check nothing that only snapshots need"),
    ("writes_split_early", 1, "split writes over records that would fit one"),
    ("clones_keep_garbage", 1, "never delete what nothing needs in the stream of a clone"),
    ("reads_give_up_at_once", 1, "fail a read at the first refused connection"),
    ("flush_of_own_writes", 1, "let a flush cover what its own connection has under way, only"),
    ("reply_for_wrong_cookie", 1, "answer two requests of a connection with each other's replies"),
    ("write_answered_before_device", 1, "answer a write over NBD before the device did"),
    ("write_cut_short_runs", 1, "run a write whose client left in the middle of its payload"),
    ("detach_answers_what_it_drops", 1, "answer at a detach the write that is still on its way"),
    ("operations_end_with_connection", 1, "let go of a lost connection before its operations end"),
    ("checkpoint_end_wakes_nobody", 1, "leave what waits for the end of a checkpoint asleep"),
    ("checkpoint_end_wakes_nobody", 2, "as above, with two nodes"),
    ("head_sent_twice", 1, "send a part of a header again that the socket took"),
    ("wake_lost_while_polling", 1, "forget operations that are woken while others are polled"),
    ("refused_payload_taken_for_requests", 1, "take the payload of a refused write for requests"),
    ("event_lost", 1, "lose the event that the content was replaced on its way up"),
    ("limit_loses_wakeup", 1, "change a limit without waking those who wait in it"),
    ("snapshot_without_drain", 1, "take a snapshot without what a stage holds"),
    ("flush_skips_stage", 1, "flush the endpoint past a stage that holds writes"),
    ("close_with_dirty_bytes", 1, "close a volume with what a stage holds not written"),
    ("lease_unchecked_on_reply", 2, "send replies without looking at the leases they depend on"),
    ("delete_without_lease", 2, "delete objects without holding the lease"),
    ("takeover_without_wait", 2, "take a volume over without waiting for the holder's lease"),
    ("wait_half_a_lease", 2, "wait for a part of the holder's lease only"),
    ("wait_on_own_renewals", 2, "take every renewal of the holder's node for one of the holder"),
    ("deadline_after_request", 2, "count the lease from the reply to its renewal"),
    (
        "missed_deadline_forgiven",
        2,
        "let a later renewal revive an opening that missed its deadline",
    ),
    ("no_deadline_check_on_reply", 2, "answer without looking at the deadline"),
    ("renew_without_list", 2, "count a renewal without listing the chain"),
    ("create_without_list", 2, "count a manifest without listing the chain"),
    ("prune_too_eagerly", 2, "delete the predecessor of the version that is being published"),
    ("remote_flush_without_lease", 2, "answer a remote flush without holding the lease"),
    ("entry_without_first_sequence_owns", 2, "let an opening own sequences that it never stated"),
    ("epoch_used_again", 2, "open under the epoch of the opening before"),
    ("delete_before_publication", 2, "delete void objects before the first sequence is published"),
    ("replay_superseded_journal", 2, "as above, with two nodes"),
    ("not_sent_again", REMOTE, "send nothing again to a server that lost it"),
    (
        "lost_answer_taken_for_unchanged",
        REMOTE,
        "say that nothing has changed to a session that may not have heard that it has",
    ),
    (
        "whole_before_sent_again",
        REMOTE,
        "take an opening for whole before what was lost is there again",
    ),
    ("exclusive_loss_ignored", REMOTE, "go on though another client has had exclusive access"),
    ("exclusive_shared", REMOTE, "give exclusive access beside others that may write"),
    ("tag_outlives_a_writer", REMOTE, "keep a tag though another client may have written"),
    ("same_generation", REMOTE, "connect anew under the generation of the lost connection"),
    ("old_generation_runs_on", REMOTE, "let old connections run on beside newer ones of a client"),
    (
        "flush_covers_later_writes",
        REMOTE,
        "take for flushed what was acknowledged during the flush",
    ),
    ("ready_before_sent_again", REMOTE, "send what waits before what was lost is there again"),
    (
        "forced_change_undone",
        REMOTE,
        "send older bytes again over a change that survived by itself",
    ),
    ("another_opening_taken_for_same", REMOTE, "take every opening of the server for the same one"),
    ("loss_forgotten", REMOTE, "go on writing where what was acknowledged may be lost"),
    ("flush_joins_earlier", REMOTE, "let a flush join one that was asked for before it"),
    ("unanswered_writes_acknowledged", REMOTE, "acknowledge writes whose connection was lost"),
];

/// The names, each once, in the order of the table.
fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for (name, _, _) in MUTANTS {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    names
}

/// Prints the names.
pub(crate) fn list() -> ExitCode {
    for name in names() {
        println!("{name}");
    }
    ExitCode::SUCCESS
}

/// Runs the mutants; fails unless every one is caught within `seeds`, with each number of nodes that it is listed for.
pub(crate) fn run_all(wanted: &[String], seeds: u64) -> ExitCode {
    if !cfg!(weir_mutants) {
        eprintln!(
            "deliberate bugs need a build with RUSTFLAGS=\"--cfg weir_mutants\"; see sim/mutants"
        );
        return ExitCode::FAILURE;
    }
    let all = names();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        eprintln!("there is no deliberate bug {unknown}; --list-mutants names them");
        return ExitCode::FAILURE;
    }
    let (mut caught, mut missed) = (0, 0);
    println!("{:<28} {:>10} {:>8}  deliberate bug", "mutant", "seed", "seconds");
    for name in all {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        // One bug, however many kinds of runs must catch it.
        let mut everywhere = true;
        for (_, nodes, what) in MUTANTS.iter().filter(|(listed, _, _)| *listed == name) {
            everywhere &= catch(name, *nodes, what, seeds);
        }
        *(if everywhere { &mut caught } else { &mut missed }) += 1;
    }
    println!("\n{caught} caught within {seeds} seeds each, {missed} missed");
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one in a process of its own; whether the simulation caught it.
fn catch(name: &str, nodes: u64, what: &str, seeds: u64) -> bool {
    let me = std::env::current_exe().expect("a program knows where it is");
    let started = Instant::now();
    let output = Command::new(me)
        .args(["--quiet", "--start", "1", "--seeds", &seeds.to_string()])
        .arg(run::flag(nodes))
        .env("WEIR_MUTANT", name)
        .output()
        .expect("the same program can be run again");
    let seconds = started.elapsed().as_secs();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let seed = text
        .split("VIOLATION in seed ")
        .nth(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        .filter(|_| !output.status.success());
    let shown = seed.as_deref().unwrap_or("MISSED");
    println!("{name:<28} {shown:>10} {seconds:>8}  {what}");
    seed.is_some()
}
