//! Lines for the model: loom's atomics are larger than words and are constructed one by one, so
//! they are separate from the memory.

use std::array::from_fn;

use crate::bounded::{Cell, Cursor, Cursors};
use crate::doorbell::DoorbellLine;
use crate::layout::{Control, Header, LayoutError, Shape};
use crate::memory::Memory;
use crate::progress::ProgressLine;
use crate::task::TaskLine;

/// The lines of a queue, with the memory that would contain them.
#[derive(Debug)]
pub(crate) struct Sections {
    control: Control,
    handlers: Vec<Cell>,
    tasks: Vec<TaskLine>,
    progress: Vec<ProgressLine>,
    memory: Memory,
}

impl Sections {
    pub(crate) fn of(memory: Memory, shape: &Shape) -> Result<Sections, LayoutError> {
        shape.fits(memory.len_bytes())?;
        let control = Control {
            header: Header::default(),
            head: Cursor::default(),
            tail: Cursor::default(),
            doorbell: DoorbellLine::default(),
            sync: Cursors::default(),
            handlers: Cursors::default(),
            sync_cells: from_fn(|_| Cell::default()),
        };
        let count = shape.slots.count();
        Ok(Sections {
            control,
            handlers: (0..count).map(|_| Cell::default()).collect(),
            tasks: (0..count).map(|_| TaskLine::default()).collect(),
            progress: (0..count).map(|_| ProgressLine::default()).collect(),
            memory,
        })
    }

    /// The model has no peer.
    pub(crate) fn shape_in(_memory: &Memory) -> Result<Shape, LayoutError> {
        Header::default().read()
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn handlers(&self) -> &[Cell] {
        &self.handlers
    }

    pub(crate) fn tasks(&self) -> &[TaskLine] {
        &self.tasks
    }

    pub(crate) fn progress(&self) -> &[ProgressLine] {
        &self.progress
    }

    /// A no-op: the model has no prefetch.
    pub(crate) fn expect_write(&self, _index: usize) {}

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}
