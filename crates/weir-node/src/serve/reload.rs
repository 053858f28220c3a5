//! Settings that are loaded anew, and what they bring to the volumes of a process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weir_device::with_causes;
use weir_log::catalog::VolumeName;

use crate::error::NodeError;
use crate::serve::attach::{
    Asked, Begun, Detaching, Failed, Wanted, detach, let_wait, open_or_wait, wanted,
};
use crate::serve::core::Core;
use crate::serve::left;
use crate::serve::spec::{Closing, Stopped, VolumeSet, VolumeSpec};

/// How long a reload waits for the close of volumes that the settings do not name any more. A store that does not
/// answer is given up before.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(60);

/// Pause before a volume is tried again that a verb changes.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// How long a reload waits for volumes to be opened. What they wait for may never answer.
const OPEN_TIME_MAX: Duration = Duration::from_secs(60);

/// The result of loading a configuration anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Served from now on.
    pub attached: Vec<VolumeName>,
    /// Of these, the volumes that did not exist before, with their sizes in bytes.
    pub created: Vec<(VolumeName, u64)>,
    /// Not served any more.
    pub detached: Vec<VolumeName>,
    /// Not served though the settings name them, and what became of them: verbs left it so.
    pub left_out: Vec<(VolumeName, String)>,
    /// Served as before, or being opened as a verb asked for before: their changed settings take effect when they are
    /// attached the next time.
    pub kept_as_they_are: Vec<VolumeName>,
    /// Served once those answer whom they wait for: the node that has them open, or their files.
    pub waiting: Vec<(VolumeName, String)>,
    /// What did not work, and why.
    pub failed: Vec<(VolumeName, String)>,
}

/// Has new settings count for whom they let in, and for what is decided from now on. Waits for nothing: whom a list
/// leaves out does not wait for the store to answer, or for a volume to be opened or closed.
pub(crate) fn take_settings(core: &Core, volumes: VolumeSet, template: Box<VolumeSpec>) {
    core.set_wanted(volumes, template);
    core.let_in_as_settings_say_everywhere();
    core.forget_where_settings_changed();
}

/// Serves what the settings name, and nothing else but what was attached by hand. A volume that has clients is not
/// detached; the report names it. One that is served and of which the store has nothing that can be read just now is
/// served on.
pub(crate) async fn follow_settings(core: &Arc<Core>) -> Result<Reloaded, NodeError> {
    let Wanted { specs: wanted, unreadable, left_out } = wanted(core).await?;
    let mut reloaded = Reloaded { left_out, ..Reloaded::default() };
    note_unreadable(core, &unreadable, &mut reloaded);
    // What cannot be read just now is in the store all the same.
    let is_unreadable = |name: &VolumeName| unreadable.iter().any(|(other, _)| other == name);
    let is_wanted = |name: &VolumeName| {
        is_unreadable(name)
            || core.is_attached_by_hand(name)
            || wanted.iter().any(|spec| spec.name == *name)
    };
    // Openings that wait for another node begin anew, as the configuration says now, or not at all.
    let begins_anew = |name: &VolumeName, is_configured| is_configured && !is_unreadable(name);
    let taken_back = core.take_back(begins_anew).await;
    for name in taken_back.into_iter().filter(|name| !is_wanted(name)) {
        if core.entry(name.as_str()).is_none() {
            left::close_if_held(core, name)?;
        }
    }
    let opened_otherwise = core.opened_otherwise();
    bring_in_line(core, &wanted, &is_wanted, &mut reloaded).await;
    for name in opened_otherwise {
        if !reloaded.kept_as_they_are.contains(&name) {
            reloaded.kept_as_they_are.push(name);
        }
    }
    core.forget_not_served(|name| !VolumeName::new(name).is_ok_and(|name| is_wanted(&name)));
    core.failed_before.keep(&wanted);
    let missing = wanted.into_iter().filter(|spec| core.entry(spec.name.as_str()).is_none());
    let first = core.least_used_shard();
    let attaching = missing.enumerate().map(|(index, spec)| {
        let shard = (first + index) % core.node.shard_count();
        open_or_wait(core, spec, shard, OPEN_TIME_MAX)
    });
    for (name, begun) in join_all(attaching).await {
        match begun {
            Begun::Ended(Ok(())) => {
                let created = core.entry(name.as_str()).filter(|entry| entry.created);
                reloaded.created.extend(created.map(|entry| (name.clone(), entry.gate.size())));
                reloaded.attached.push(name);
            }
            Begun::Ended(Err(NodeError::TakenBack { .. })) => {
                reloaded.left_out.push((name, "it was detached meanwhile".to_owned()));
            }
            Begun::Ended(Err(error @ NodeError::Changing { .. })) => {
                let why = format!("{}; it is opened once that has ended", with_causes(&error));
                open_after_change(core, name.clone());
                reloaded.failed.push((name, why));
            }
            Begun::Ended(Err(error)) => {
                core.note_failed(&name, &error);
                reloaded.failed.push((name, with_causes(&error)));
            }
            Begun::Waits { whom, opened, opening } => {
                let_wait(core, (name.clone(), opening), &whom, opened);
                reloaded.waiting.push((name, whom));
            }
        }
    }
    Ok(reloaded)
}

/// Notes of which volumes the store has nothing that can be read.
fn note_unreadable(core: &Core, unreadable: &Failed, reloaded: &mut Reloaded) {
    for (name, error) in unreadable {
        reloaded.failed.push((name.clone(), with_causes(error)));
        if core.entry(name.as_str()).is_none() {
            core.note_failed(name, error);
        }
    }
}

/// Opens a volume that the settings name once the verb or the close has ended that changes it, unless the settings or a
/// verb say otherwise by then.
fn open_after_change(core: &Arc<Core>, name: VolumeName) {
    let opening = Arc::clone(core);
    let opened = core.in_background(async move {
        let core = &opening;
        loop {
            tokio::time::sleep(CHANGE_PAUSE).await;
            let is_left = core.entry(name.as_str()).is_some() || core.is_detached_by_hand(&name);
            let Some(spec) = core.line_of(&name).filter(|_| !is_left) else { return Ok(()) };
            let shard = core.least_used_shard();
            match open_or_wait(core, spec, shard, Duration::MAX).await.1 {
                Begun::Ended(Err(NodeError::Changing { .. })) => {}
                Begun::Ended(Ok(())) => return Ok(()),
                Begun::Ended(Err(error)) => {
                    core.note_failed(&name, &error);
                    return Ok(());
                }
                Begun::Waits { whom, opened, opening } => {
                    let_wait(core, (name, opening), &whom, opened);
                    return Ok(());
                }
            }
        }
    });
    // It runs in the background.
    drop(opened);
}

/// Has what is served served as the settings say, or no more.
async fn bring_in_line(
    core: &Arc<Core>,
    wanted: &[VolumeSpec],
    is_wanted: impl Fn(&VolumeName) -> bool,
    reloaded: &mut Reloaded,
) {
    let mut leaving = Vec::new();
    for entry in core.entries() {
        let name = &entry.name;
        let named = wanted.iter().find(|spec| spec.name == *name).cloned();
        // One that a verb attached is served as the settings of all volumes say.
        match named.or_else(|| is_wanted(name).then(|| core.spec_of(name))) {
            Some(spec) if spec.serves_like(&entry.spec) => {}
            Some(_) => reloaded.kept_as_they_are.push(name.clone()),
            None => leaving.push(leave_out_within(core, name.clone())),
        }
    }
    for (name, left_out) in join_all(leaving).await {
        match left_out {
            Some(Ok(())) => reloaded.detached.push(name),
            Some(Err(error)) => reloaded.failed.push((name, with_causes(&error))),
            None => {
                let why =
                    format!("it is still being closed after {LEAVE_TIME_MAX:?}, which goes on");
                reloaded.failed.push((name, why));
            }
        }
    }
}

/// Serves a volume no more that the settings do not name; nothing if that takes too long, and goes on.
async fn leave_out_within(
    core: &Arc<Core>,
    name: VolumeName,
) -> (VolumeName, Option<Result<(), NodeError>>) {
    let (leaving, whose) = (Arc::clone(core), name.clone());
    let left_out = core.in_background(async move { leave_out(&leaving, &whose).await });
    (name, tokio::time::timeout(LEAVE_TIME_MAX, left_out).await.ok())
}

/// Serves a volume no more that the settings do not name.
async fn leave_out(core: &Arc<Core>, name: &VolumeName) -> Result<(), NodeError> {
    let how = Detaching { disconnect: false, closing: Closing::ToStore, asked: Asked::BySettings };
    match detach(core, name.clone(), how).await? {
        Stopped::Clean => Ok(()),
        Stopped::LocalOnly => {
            // Nobody would do it otherwise.
            left::close(core, vec![name.clone()])?;
            Err(NodeError::KeptInJournal { name: name.to_string() })
        }
    }
}
