//! The verbs on volumes and snapshots, one file each.
//!
//! A [`Verb`] is what is asked for, and says what it does with a volume that is served here and what it does with the
//! store alone. Everything else is derived from it: the route and its entry in the OpenAPI document (`route.rs`), the
//! request to the process that serves the volume (`call.rs`, `send.rs`), and, with its [`command::Command`], the words
//! on the command line, their help and their output. A new verb is a file of this directory, its module below and its
//! line in the list at the end.

pub mod attach;
pub mod cache;
mod call;
pub mod change_snapshots;
pub mod check;
pub mod clone;
pub mod command;
pub mod compact;
pub mod create;
pub mod delete;
pub mod detach;
pub mod flatten;
pub mod flush;
pub mod limit;
pub mod list;
pub mod list_snapshots;
pub mod place;
pub mod promote;
pub mod rekey;
pub mod rename;
pub mod repair;
pub mod resize;
pub(crate) mod route;
mod send;
pub mod set;
pub mod show;
pub mod space;
pub mod verb;
pub mod warm;
mod words;

use self::command::CommandEntry;
use self::verb::Verb;

/// What is done with every verb.
pub(crate) trait EachVerb {
    /// Does it with this one.
    fn verb<V: Verb>(&mut self);
}

/// Makes [`each_verb`] and [`commands`] of one list: a `verb` has a route, a `command` words on the command line.
macro_rules! list {
    ($($file:ident::$name:ident: $($what:ident),+;)+) => {
        /// Every verb that has a route.
        pub(crate) fn each_verb(each: &mut impl EachVerb) {
            $($(list!(@verb $what each $file::$name);)+)+
        }

        /// Every command of `weir volume` and `weir snapshot` that is one verb, in the order of the help.
        #[must_use]
        pub fn commands() -> Vec<CommandEntry> {
            [$($(list!(@command $what $file::$name)),+),+].into_iter().flatten().collect()
        }
    };
    (@verb verb $each:ident $file:ident::$name:ident) => { $each.verb::<$file::$name>() };
    (@verb command $each:ident $file:ident::$name:ident) => {};
    (@command command $file:ident::$name:ident) => { Some(CommandEntry::of::<$file::$name>()) };
    (@command verb $file:ident::$name:ident) => { None };
}

// In the order of the help.
list! {
    create::CreateVolume: verb, command;
    list::ListVolumes: verb, command;
    show::ShowVolume: verb, command;
    attach::AttachVolume: verb, command;
    detach::DetachVolume: verb, command;
    set::SetTakeover: verb, command;
    limit::LimitVolume: verb, command;
    rename::RenameVolume: verb, command;
    resize::ResizeVolume: verb, command;
    flush::FlushVolume: verb, command;
    compact::CompactVolume: verb, command;
    warm::WarmVolume: verb, command;
    clone::CloneVolume: verb, command;
    flatten::FlattenVolume: verb, command;
    rekey::RekeyVolume: command;
    promote::PromoteVolume: command;
    delete::DeleteVolume: verb, command;
    change_snapshots::TakeSnapshot: command;
    list_snapshots::ListSnapshots: verb, command;
    change_snapshots::DeleteSnapshot: command;
    change_snapshots::RollBack: command;
    check::CheckVolume: verb;
    repair::RepairVolume: verb;
    change_snapshots::ChangeSnapshots: verb;
    space::ShowSpace: verb;
    cache::ShowCache: verb;
    cache::ResizeCache: verb;
}
