//! A thread that computes all the time, beside the program and the service.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Hog {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    /// Starts it, on any processor.
    pub fn start() -> Hog {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let mut number = 1_u64;
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..10_000 {
                        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005) | 1);
                    }
                }
            }
        });
        Hog { is_over, thread: Some(thread) }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It computes only; there is no result.
            let _ = thread.join();
        }
    }
}
