//! What a hosted program gets from elsewhere: an entry point, an exit, the functions that compilers call, and an allocator
//! if one is wanted.

use core::arch::{asm, naked_asm};

/// Aligns the stack and goes on in Rust.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {run}", "ud2", run = sym run)
}

extern "C" fn run() -> ! {
    exit(crate::main())
}

fn exit(status: u8) -> ! {
    // exit_group(status)
    unsafe {
        asm!("syscall", in("rax") 231, in("rdi") u64::from(status), options(noreturn, nostack));
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(255)
}

/// The prebuilt core of a hosted target asks for these two; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit(254)
}

// By string instructions: written as loops, the optimiser would turn them into calls of themselves.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    unsafe {
        asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= n {
        return unsafe { memcpy(to, from, n) };
    }
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") n => _,
            inout("rdi") to.wrapping_add(n).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(n).wrapping_sub(1) => _,
            options(nostack)
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    let mut at = 0;
    while at < n {
        // Volatile, so that this loop stays a loop.
        let (x, y) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
        at += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    unsafe { memcmp(a, b, n) }
}

#[cfg(feature = "alloc")]
mod allocator {
    use core::alloc::{GlobalAlloc, Layout};
    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicUsize, Ordering};

    const SIZE: usize = 256 * 1024;

    /// Takes from one block, gives nothing back.
    struct Bump {
        memory: UnsafeCell<[u8; SIZE]>,
        used: AtomicUsize,
    }

    // One thread, and every byte is handed out once.
    unsafe impl Sync for Bump {}

    unsafe impl GlobalAlloc for Bump {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let base = self.memory.get() as usize;
            let start = (base + self.used.load(Ordering::Relaxed)).next_multiple_of(layout.align());
            let end = start - base + layout.size();
            if end > SIZE {
                return core::ptr::null_mut();
            }
            self.used.store(end, Ordering::Relaxed);
            start as *mut u8
        }

        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
    }

    #[global_allocator]
    static BUMP: Bump = Bump {
        memory: UnsafeCell::new([0; SIZE]),
        used: AtomicUsize::new(0),
    };
}
