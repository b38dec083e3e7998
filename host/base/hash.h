/* SHA-256 (libcrypto) as lower-case hex: provenance of models, data and prompts, and CRC-32 for record lines. */
#ifndef KVE_BASE_HASH_H
#define KVE_BASE_HASH_H

#include "host/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { KVE_SHA256_HEX = 65 }; /* 64 digits and the NUL */

kve_status kve_sha256(const void *data, size_t len, char hex[KVE_SHA256_HEX]);
kve_status kve_sha256_file(const char *path, char hex[KVE_SHA256_HEX]);
uint32_t kve_crc32(const void *data, size_t len); /* CRC-32 as in zlib: polynomial 0xEDB88320 */

#endif
