// Where explored sources call us: each call goes on on a stack of ours, so that theirs hold nothing but their own.
#define ENTRY(name)                      \
    __asm__(".globl " #name "\n" #name   \
            ":\n"                        \
            "    push %rbp\n"            \
            "    mov %rsp, %rbp\n"       \
            "    mov self(%rip), %r11\n" \
            "    mov %rbp, (%r11)\n"     \
            "    mov 8(%r11), %rsp\n"    \
            "    call do_" #name         \
            "\n"                         \
            "    mov %rbp, %rsp\n"       \
            "    pop %rbp\n"             \
            "    ret\n")

ENTRY(__tsan_func_entry);
ENTRY(__tsan_func_exit);
#define PLAIN(size)                     \
    ENTRY(__tsan_read##size);           \
    ENTRY(__tsan_write##size);          \
    ENTRY(__tsan_unaligned_read##size); \
    ENTRY(__tsan_unaligned_write##size)
PLAIN(1);
PLAIN(2);
PLAIN(4);
PLAIN(8);
PLAIN(16);
ENTRY(__tsan_read_range);
ENTRY(__tsan_write_range);
#define ATOMIC(bits)                                      \
    ENTRY(__tsan_atomic##bits##_load);                    \
    ENTRY(__tsan_atomic##bits##_store);                   \
    ENTRY(__tsan_atomic##bits##_exchange);                \
    ENTRY(__tsan_atomic##bits##_fetch_add);               \
    ENTRY(__tsan_atomic##bits##_fetch_sub);               \
    ENTRY(__tsan_atomic##bits##_fetch_and);               \
    ENTRY(__tsan_atomic##bits##_fetch_or);                \
    ENTRY(__tsan_atomic##bits##_fetch_xor);               \
    ENTRY(__tsan_atomic##bits##_compare_exchange_strong); \
    ENTRY(__tsan_atomic##bits##_compare_exchange_weak)
ATOMIC(8);
ATOMIC(16);
ATOMIC(32);
ATOMIC(64);
ENTRY(__tsan_atomic_thread_fence);

ENTRY(explored_malloc);
ENTRY(explored_calloc);
ENTRY(explored_aligned_alloc);
ENTRY(explored_free);
ENTRY(explored_memset);
ENTRY(explored_memcpy);
ENTRY(explored_strcpy);
ENTRY(explored_snprintf);
ENTRY(explored_create);
ENTRY(explored_join);
ENTRY(explored_lock);
ENTRY(explored_unlock);
ENTRY(explored_wait);
ENTRY(explored_timedwait);
ENTRY(explored_signal);
ENTRY(explored_clock);
ENTRY(explored_yield);
ENTRY(explored_syscall);
