/* The machine's processor: how much of it this process may use, and its name for provenance. */
#ifndef KVE_BASE_PROCESSOR_H
#define KVE_BASE_PROCESSOR_H

#include <stddef.h>
#include <stdint.h>

int32_t kve_usable_cpus(void); /* a job's share, not the machine's; 1 at the least */
/* "AMD EPYC ...", as the system has it, or "unknown processor". */
void kve_processor_name(char *out, size_t size);

#endif
