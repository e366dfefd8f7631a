/* reader.c: the peer of discovery. It reads exactly what a complete picture of
 * the host takes, in a careful C program's way (paths relative to an open
 * directory, no stdio), and nothing else:
 *
 * host    names of bus/pci/devices, bus/pci/drivers and class/mdev_bus; of each
 *         device the link physfn, and of those that have none the class
 * GPU     (class 03 or 1200, without physfn) vendor, device, subsystem_vendor,
 *         subsystem_device, numa_node, boot_vga, modalias, sriov_totalvfs,
 *         sriov_vf_msix_count; links driver and iommu_group; names of itself,
 *         iommu_group/devices and vfio-dev; each link virtfnN
 * VF      links physfn, driver, iommu_group; names of vfio-dev
 * parent  (of class/mdev_bus) names of itself and of mdev_supported_types; of
 *         each type available_instances; and once a type and GPU, since it
 *         belongs to the driver: name, description, device_api
 * mdev    links mdev_type, driver, iommu_group; names of vfio-dev; whether
 *         class/vfio/<group> is there
 *
 * reader SYS THREADS: the GPUs are dealt out to the threads. Prints how many
 * things it read and the sum of their bytes, then ends.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TYPES = 256, NAME = 64 };

struct names { char (*name)[NAME]; int count; };

static int sys_fd;
static atomic_long things, bytes;
static __thread long my_things, my_bytes;

static void count(long n) { my_things++; if (n > 0) my_bytes += n; }

static long text(int dir, const char *path, char *into, size_t size)
{
	char page[4096];
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	long n = fd < 0 ? -1 : read(fd, page, sizeof page);
	if (fd >= 0)
		close(fd);
	count(n);
	if (into) {
		if (n < 0)
			n = 0;
		if ((size_t)n >= size)
			n = size - 1;
		memcpy(into, page, n);
		into[n] = 0;
	}
	return n;
}

/* The last element of a link. */
static int target(int dir, const char *path, char into[NAME])
{
	char link[4096];
	long n = readlinkat(dir, path, link, sizeof link - 1);
	count(n);
	into[0] = 0;
	if (n < 0)
		return 0;
	link[n] = 0;
	char *last = strrchr(link, '/');
	snprintf(into, NAME, "%.63s", last ? last + 1 : link);
	return 1;
}

static struct names names(int dir, const char *path)
{
	struct names all = { 0 };
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), room = 0;
	DIR *open = fd < 0 ? NULL : fdopendir(fd);
	count(0);
	if (!open)
		return all;
	for (struct dirent *entry; (entry = readdir(open));) {
		if (entry->d_name[0] == '.')
			continue;
		if (all.count == room)
			all.name = realloc(all.name, (room = room ? room * 2 : 32) * NAME);
		snprintf(all.name[all.count++], NAME, "%.63s", entry->d_name);
	}
	closedir(open);
	return all;
}

static int open_dir(const char *under, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", under, name);
	return openat(sys_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void mdev(int parent, const char *uuid)
{
	char path[256], value[NAME], group[NAME];
	struct stat there;
	fstatat(parent, uuid, &there, 0);
	snprintf(path, sizeof path, "%s/mdev_type", uuid), target(parent, path, value);
	snprintf(path, sizeof path, "%s/driver", uuid), target(parent, path, value);
	snprintf(path, sizeof path, "%s/iommu_group", uuid), target(parent, path, group);
	snprintf(path, sizeof path, "%s/vfio-dev", uuid), free(names(parent, path).name);
	snprintf(path, sizeof path, "class/vfio/%s", group);
	fstatat(sys_fd, path, &there, 0);
}

static void parent(const char *name, struct names *known)
{
	static const char *const of_type[] = { "name", "description", "device_api" };
	char path[256];
	int dir = open_dir("class/mdev_bus", name);
	int types_dir = openat(dir, "mdev_supported_types", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct names types = names(dir, "mdev_supported_types");
	for (int t = 0; t < types.count; t++) {
		int seen = 0;
		for (int k = 0; k < known->count && !seen; k++)
			seen = !strcmp(known->name[k], types.name[t]);
		for (int a = 0; a < 3 && !seen; a++) {
			snprintf(path, sizeof path, "%s/%s", types.name[t], of_type[a]);
			text(types_dir, path, NULL, 0);
		}
		if (!seen && known->count < MAX_TYPES)
			memcpy(known->name[known->count++], types.name[t], NAME);
		snprintf(path, sizeof path, "%s/available_instances", types.name[t]);
		text(types_dir, path, NULL, 0);
	}
	struct names children = names(dir, ".");
	for (int c = 0; c < children.count; c++)
		if (strlen(children.name[c]) == 36)
			mdev(dir, children.name[c]);
	free(types.name), free(children.name);
	close(types_dir), close(dir);
}

static void function(const char *name)
{
	char value[NAME];
	struct stat there;
	int dir = open_dir("bus/pci/devices", name);
	fstat(dir, &there);
	target(dir, "physfn", value), target(dir, "driver", value), target(dir, "iommu_group", value);
	free(names(dir, "vfio-dev").name);
	close(dir);
}

static int is_parent(struct names *parents, const char *name)
{
	for (int p = 0; p < parents->count; p++)
		if (!strcmp(parents->name[p], name))
			return 1;
	return 0;
}

static struct names parents;

static void gpu(const char *name)
{
	static const char *const values[] = { "vendor", "device", "subsystem_vendor",
		"subsystem_device", "class", "numa_node", "boot_vga", "modalias", "sriov_totalvfs" };
	char value[NAME], vf[NAME];
	int dir = open_dir("bus/pci/devices", name);
	struct names known = { malloc(MAX_TYPES * NAME), 0 };
	for (size_t v = 0; v < sizeof values / sizeof *values; v++)
		text(dir, values[v], NULL, 0);
	target(dir, "driver", value), target(dir, "iommu_group", value);
	free(names(dir, "iommu_group/devices").name);
	free(names(dir, "vfio-dev").name);
	struct names all = names(dir, ".");
	if (is_parent(&parents, name))
		parent(name, &known);
	for (int n = 0; n < all.count; n++) {
		if (strncmp(all.name[n], "virtfn", 6) || !target(dir, all.name[n], vf))
			continue;
		function(vf);
		if (is_parent(&parents, vf))
			parent(vf, &known);
	}
	free(all.name), free(known.name);
	close(dir);
}

static char (*gpus)[NAME];
static int gpu_count;
static atomic_int next;

static void *work(void *unused)
{
	for (int n; (n = next++) < gpu_count;)
		gpu(gpus[n]);
	things += my_things;
	bytes += my_bytes;
	my_things = my_bytes = 0;
	return unused;
}

int main(int argc, char **argv)
{
	char path[256], value[NAME];
	pthread_t threads[64];
	int wanted = argc > 2 ? atoi(argv[2]) : 1;
	if (argc < 2 || (sys_fd = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 || wanted < 1 || wanted > 64)
		return fprintf(stderr, "reader SYS THREADS\n"), 2;
	struct names devices = names(sys_fd, "bus/pci/devices");
	free(names(sys_fd, "bus/pci/drivers").name);
	parents = names(sys_fd, "class/mdev_bus");
	gpus = malloc((devices.count + 1) * NAME);
	int devices_dir = openat(sys_fd, "bus/pci/devices", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int d = 0; d < devices.count; d++) {
		snprintf(path, sizeof path, "%s/physfn", devices.name[d]);
		if (target(devices_dir, path, value))
			continue;
		snprintf(path, sizeof path, "%s/class", devices.name[d]);
		text(devices_dir, path, value, sizeof value);
		long class = strtol(value, NULL, 16);
		if (class >> 16 != 0x03 && class >> 8 != 0x1200)
			continue;
		snprintf(path, sizeof path, "%s/sriov_vf_msix_count", devices.name[d]);
		struct stat there;
		fstatat(devices_dir, path, &there, 0);
		memcpy(gpus[gpu_count++], devices.name[d], NAME);
	}
	for (int t = 1; t < wanted; t++)
		if (pthread_create(&threads[t], NULL, work, NULL))
			return 1;
	work(NULL);
	for (int t = 1; t < wanted; t++)
		pthread_join(threads[t], NULL);
	printf("%ld things, %ld bytes\n", (long)things, (long)bytes);
	return 0;
}
