/*
 * A log: records arrive in a buffer that is used again at once, are copied into a batch, and a
 * batch is synced before it is written to the file. While copies are made, the program formats the
 * next record. The file is read back at the end and compared.
 *
 *   cc log_pipeline.c $(pkg-config --cflags --libs unlade-copier) && ./a.out
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unlade/copier.h>

enum { RECORD = 16 << 10, BATCH_RECORDS = 16, RECORDS = 400, INPUTS = 4 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* A record: its number, and bytes that depend on it. */
static void make_record(unsigned char *record, unsigned number)
{
    for (size_t i = 0; i < RECORD; i++)
        record[i] = (unsigned char)(number * 31 + i * (number | 1) + (i >> 8));
    memcpy(record, &number, sizeof number);
}

static void write_batch(int file, const unsigned char *batch, size_t n)
{
    /* The bytes of the batch are used now. */
    if (csync(batch, n) != 0)
        fail("csync");
    while (n > 0) {
        ssize_t written = write(file, batch, n);
        if (written <= 0)
            fail("write");
        batch += written;
        n -= (size_t)written;
    }
}

static unsigned wrong_records(int file)
{
    unsigned char *read_back = malloc(RECORD), *expected = malloc(RECORD);
    unsigned wrong = 0;

    if (!read_back || !expected)
        fail("malloc");
    for (unsigned number = 0; number < RECORDS; number++) {
        if (pread(file, read_back, RECORD, (off_t)number * RECORD) != RECORD)
            fail("pread");
        make_record(expected, number);
        wrong += memcmp(read_back, expected, RECORD) != 0;
    }
    free(read_back);
    free(expected);
    return wrong;
}

int main(void)
{
    unsigned char *input = malloc((size_t)INPUTS * RECORD);
    unsigned char *batch = malloc((size_t)BATCH_RECORDS * RECORD);
    FILE *log = tmpfile();
    size_t filled = 0;

    if (!input || !batch || !log)
        fail("setup");
    for (unsigned number = 0; number < RECORDS; number++) {
        unsigned char *record = input + (size_t)(number % INPUTS) * RECORD;

        /* The source is changed now: earlier copies must have read it. */
        if (csync_write(record, RECORD) != 0)
            fail("csync_write");
        make_record(record, number);
        amemcpy(batch + filled, record, RECORD);
        filled += RECORD;
        if (filled == (size_t)BATCH_RECORDS * RECORD || number + 1 == RECORDS) {
            write_batch(fileno(log), batch, filled);
            filled = 0;
        }
    }
    unsigned wrong = wrong_records(fileno(log));
    printf("log_pipeline: %u of %u records are right\n", RECORDS - wrong, (unsigned)RECORDS);
    csync_all();
    free(input);
    free(batch);
    fclose(log);
    return wrong != 0;
}
