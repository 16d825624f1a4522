# The guest that Probe boots, entered in 32-bit protected mode as guests' kernels are (PVH): it makes page tables,
# enters long mode and works on memory for a while. Then it writes a byte to the debug console, works on in 32 steps
# of two million instructions, each with a byte, and writes one to the debug exit port. probe.bin is made from it by
#   as --32 probe.asm -o probe.o && ld -m elf_i386 -n -s -Ttext 0x100000 --section-start=.note.Xen=0x101000 probe.o -o probe.bin
.code32
.globl _start
.section .note.Xen, "a", @note
  .long 4, 4, 18 # the entry
  .ascii "Xen\0"
  .long _start
.text
_start:
  # page tables at 0x200000: identity map of the first GiB with 2 MiB pages
  cld
  mov $0x200000, %edi
  xor %eax, %eax
  mov $0x3000/4, %ecx
  rep stosl
  movl $0x201003, 0x200000
  movl $0x202003, 0x201000
  mov $0x202000, %edi
  mov $0x83, %eax
  mov $512, %ecx
1: mov %eax, (%edi)
  add $0x200000, %eax
  add $8, %edi
  loop 1b
  mov $0x200000, %eax
  mov %eax, %cr3
  mov %cr4, %eax
  or $0x20, %eax
  mov %eax, %cr4
  mov $0xC0000080, %ecx
  rdmsr
  or $0x100, %eax
  wrmsr
  mov %cr0, %eax
  or $0x80000000, %eax
  mov %eax, %cr0
  lgdt gdtr
  ljmp $8, $long
.code64
long:
  mov $100000, %rcx
2: mov $0x300000, %rdi
  mov %rcx, (%rdi)
  loop 2b
  mov $33, %ebx
4: mov $'.', %al
  mov $0xe9, %dx
  outb %al, %dx
  dec %ebx
  jz 5f
  mov $1000000, %ecx
6: mov %rcx, (%rdi)
  dec %rcx
  jnz 6b
  jmp 4b
5: mov $0x10, %al
  mov $0x501, %dx
  outb %al, %dx
3: hlt
  jmp 3b
.align 8
gdt: .quad 0, 0x00209A0000000000
gdtr: .word 15
  .long gdt
