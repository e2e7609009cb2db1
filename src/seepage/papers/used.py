"""What the data sets are that rows of the book were measured on."""

USED: dict[str, str] = {
    "album": "packaged photographs, faces and digits as 32 x 32 RGB; no data set of a paper",
    "cifar10.npz": "CIFAR-10, 3,730 training and 676 test images of 60,000",
    "cifar10_both_splits.npz": "CIFAR-10, x and y of cifar10.npz as one part, test before training images: 4,406",
    "digits": "5,000 packaged MNIST digits, also where the paper has SVHN, which was never read",
    "faces": "packaged crops of Labeled Faces in the Wild, half of them without a face; no data set of a paper",
    "faces_yale_32.npz": "Yale faces, 132 images of 12 people",
    "ham10000.zip": "HAM10000, 612 of 10,015 images",
    "imagenet_sample_224.zip": "ImageNet, 320 images of as many classes, which seem to be of the training part",
    "lc25000_lung_224.zip": "LC25000, lung alone: three of the five classes, 450 of 25,000 images, no two copies",
    "mnist.npz": "MNIST, 5,000 images of the test part",
    "photos": "tiles of thirteen packaged photographs; no data set of a paper",
    "tiny_imagenet_64.npz": "Tiny-ImageNet, 1,600 of the 10,000 validation images, eight of each class",
}
"""By the name that records have for them. What ships with a dependency stands in for a set that is not at hand."""
