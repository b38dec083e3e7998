/* SHA-256 through libcrypto; CRC-32 bit by bit (record lines are short). */
#include "host/base/hash.h"

#include "host/base/file.h"

#include <openssl/evp.h>

kve_status kve_sha256(const void *data, size_t len, char hex[KVE_SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned md_len = 0;
    if (!EVP_Digest(data ? data : "", len, md, &md_len, EVP_sha256(), NULL) || md_len != 32)
        return kve_fail(KVE_ERR_INTERNAL, "libcrypto could not compute a SHA-256 of %zu bytes", len);
    for (unsigned i = 0; i < 32; i++) {
        hex[2 * i] = digits[md[i] >> 4];
        hex[2 * i + 1] = digits[md[i] & 15];
    }
    hex[64] = '\0';
    return KVE_OK;
}

kve_status kve_sha256_file(const char *path, char hex[KVE_SHA256_HEX])
{
    kve_map map = {0};
    KVE_TRY(kve_map_open(path, &map));
    kve_status st = kve_sha256(map.data, map.size, hex);
    kve_map_close(&map);
    return st;
}

uint32_t kve_crc32(const void *data, size_t len)
{
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}
