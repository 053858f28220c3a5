//! A look at the store at the end: nothing that the volume needs is missing, and nothing is left that nobody deletes.

use std::rc::Rc;

use tokio::task::LocalSet;
use weir_log::{CheckOptions, ObjectId};

use crate::dice::Dice;
use crate::env::{Hidden, env};
use crate::world::World;

/// What is wrong with what the store holds of the volume, if anything is.
pub(crate) async fn audit(world: &World, dice: &mut Dice) -> Option<String> {
    let tasks = Rc::new(LocalSet::new());
    let (boot_id, scheduling) = (world.disk().boot_id(), world.profile.scheduling);
    let env = env(dice, boot_id, scheduling, &tasks, Hidden::default());
    let id = world.id.get();
    let options = CheckOptions::default();
    let checked = weir_log::check(&world.bare_store, &env, (id, &world.keys), &options, |_| {});
    let report = match tasks.run_until(checked).await {
        Ok(report) => report,
        Err(error) => return Some(format!("the store cannot be checked: {error}")),
    };
    if let Some(reason) = report.without_key {
        return Some(reason);
    }
    // Rot in the journal may have cost bytes; then the log says so.
    let lost_in_journal = ObjectId::prefix(id);
    if let Some(damage) = report.damage.iter().find(|d| d.place != lost_in_journal) {
        return Some(format!("{}: {}", damage.place, damage.problem));
    }
    if world.may_have_orphans() {
        return None;
    }
    // A superseded owner may store once more what its successor has deleted by then. Nobody but a check finds that.
    let late = world.late_puts.borrow();
    let left: Vec<_> = report.orphans.iter().filter(|id| !late.contains(&id.key())).collect();
    let (count, first) = (left.len(), left.first()?);
    Some(format!("{count} objects are left that nobody will delete: {first} first"))
}
