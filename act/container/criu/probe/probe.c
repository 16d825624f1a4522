// The process that a probe dumps and restores: the first of a container, with a
// TCP connection to itself on which a byte is under way. Restored and told so by a
// signal, it looks whether the byte arrives and whether one can be sent the other
// way, and says so by its exit status.
//
// It uses nothing but the kernel. probe.bin is made of it by
//   gcc -Os -static -nostdlib -ffreestanding -fno-stack-protector -fno-pie -no-pie \
//     -fno-asynchronous-unwind-tables -Wl,--build-id=none,-z,noseparate-code,-z,norelro -s -o probe.bin probe.c
#include <asm/unistd.h>

static long call(long n, long a, long b, long c, long d, long e) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return r;
}
#define CALL(name, a, b, c, d, e) call(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

enum { fine = 42, step_limit = 64 };
enum { MS_REC_PRIVATE = 16384 | 1 << 18, MNT_DETACH = 2, O_CREAT_WRONLY = 0100 | 1, SIGUSR1 = 10, SIG_BLOCK = 0, EINTR = 4 };

// must ends the process with the number of the step that went wrong.
static long must(int step, long r) {
  if (r < 0) CALL(exit_group, step, 0, 0, 0, 0);
  return r;
}

static void life(char *root) {
  struct { unsigned short family, port; unsigned address; char rest[8]; } at = {2, 0x0700, 0x0100007f, {0}};
  unsigned long signals = 1UL << (SIGUSR1 - 1);
  char byte = 'x';
  int i = 1;

  must(i++, CALL(rt_sigprocmask, SIG_BLOCK, &signals, 0, 8, 0));
  must(i++, CALL(mount, 0, "/", 0, MS_REC_PRIVATE, 0));
  must(i++, CALL(chdir, root, 0, 0, 0, 0));
  must(i++, CALL(mount, "proc", "proc", "proc", 0, 0));
  must(i++, CALL(pivot_root, ".", ".", 0, 0, 0));
  must(i++, CALL(umount2, ".", MNT_DETACH, 0, 0, 0));
  must(i++, CALL(chdir, "/", 0, 0, 0, 0));
  must(i++, CALL(close_range, 0, ~0U, 0, 0, 0));
  must(i++, CALL(setsid, 0, 0, 0, 0, 0));

  long door = must(i++, CALL(socket, 2, 1, 0, 0, 0));
  must(i++, CALL(bind, door, &at, sizeof at, 0, 0));
  must(i++, CALL(listen, door, 1, 0, 0, 0));
  long one = must(i++, CALL(socket, 2, 1, 0, 0, 0));
  must(i++, CALL(connect, one, &at, sizeof at, 0, 0));
  long other = must(i++, CALL(accept4, door, 0, 0, 0, 0));
  must(i++, CALL(write, one, &byte, 1, 0, 0));
  must(i++, CALL(close, must(i, CALL(open, "/ready", O_CREAT_WRONLY, 0600, 0, 0)), 0, 0, 0, 0));

  // A dump interrupts it.
  while (CALL(rt_sigtimedwait, &signals, 0, 0, 8, 0) == -EINTR) {}
  byte = 0;
  must(i++, CALL(read, other, &byte, 1, 0, 0) == 1 && byte == 'x' ? 0 : -1);
  byte = 'y';
  must(i++, CALL(write, other, &byte, 1, 0, 0) == 1 ? 0 : -1);
  byte = 0;
  must(i++, CALL(read, one, &byte, 1, 0, 0) == 1 && byte == 'y' ? 0 : -1);
  CALL(exit_group, fine, 0, 0, 0, 0);
}

// The kernel gives the arguments on the stack: their number, then each.
void start(long *stack) { life(stack[0] > 1 ? (char *)stack[2] : "."); }

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
